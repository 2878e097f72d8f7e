//! The one async loop around the fold: events in, advance, commands out. Any number of coordinators
//! follow the log; the leader executes the commands.

use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use millrace_queue::{Broker, BrokerError, Log, QueueError};
use millrace_schemas::Event;
use millrace_schemas::limits::{SNAPSHOT_EVENTS, TICK_MS};
use millrace_schemas::subjects::ALL_RUNS;
use millrace_telemetry::{Health, Tracer};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::fold::command::{Command, Commands};
use crate::shell::clock::UnixClock;
use crate::shell::execute::Executor;
use crate::shell::lanes::{LaneId, Lanes};
use crate::shell::leader::{Candidate, Progress, Term};
use crate::shell::shared::SharedState;
use crate::shell::traces::{Report, Traces};
use crate::shell::{execute, gauges, journal, leader, members};

mod recovery;
mod snapshots;
mod trimming;
mod collecting;

use collecting::Collecting;
use recovery::{Lost, Unfolded};
use snapshots::Snapshots;
pub use trimming::TrimSettings;
use trimming::Trimming;

/// Entries of the log that are folded in one go.
const FOLD_AT_ONCE: usize = 1_024;
/// Pause before the log is read again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Pause before a log that cannot be folded is read again.
const REREAD_LOST_LOG: Duration = Duration::from_secs(5);

/// How a coordinator behaves.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Its name. A coordinator that restarts under the same name takes its lease back at once.
    pub id: String,
    /// Id of this process, unique among all that ever run.
    pub instance: String,
    /// Events folded between two snapshots.
    pub snapshot_events: u64,
    /// How the log is trimmed behind snapshots.
    pub trim: TrimSettings,
    /// The source of ticks.
    pub clock: UnixClock,
    /// Its term as leader. The autoscaler acts while it holds, too.
    pub term: Term,
    /// Receives spans; off by default.
    pub tracer: Tracer,
}

impl DriverConfig {
    /// The usual settings for a coordinator named `id`, on this machine.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self::on(id, UnixClock::system())
    }

    /// The same on a machine with this clock, by which its term runs too.
    #[must_use]
    pub fn on(id: &str, clock: UnixClock) -> Self {
        Self {
            id: id.to_owned(),
            instance: uuid::Uuid::now_v7().to_string(),
            snapshot_events: SNAPSHOT_EVENTS,
            trim: TrimSettings::default(),
            term: Term::on(clock.machine()),
            tracer: Tracer::default(),
            clock,
        }
    }
}

/// Creates missing streams and buckets, loads the newest snapshot and shares it.
///
/// # Errors
/// The queue or the object store cannot be reached, or refuses.
pub async fn restore(broker: &Broker) -> anyhow::Result<SharedState> {
    broker.queue().ensure_topology().await.context("failed to create streams and buckets")?;
    Ok(SharedState::new(journal::restore(broker).await.context("failed to load the newest snapshot")?))
}

/// Follows the log and, while it is the leader, executes commands.
///
/// Consumes: the log; the lease. Produces: commands in their lanes; snapshots. Waits for: entries
/// of the log, and for a moment for room in the lanes. Unblocked by: `shutdown`. On failure: reads
/// the log again from its last position; if the log lost folded entries, folds the rest from the
/// newest snapshot. The future is boxed, so that it is compiled once.
///
/// # Errors
/// The log cannot be opened at the start.
pub fn run(
    broker: Broker,
    config: DriverConfig,
    shared: SharedState,
    health: Health,
    shutdown: CancellationToken,
) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        let from = shared.lock().seq.max(1);
        let log = broker.follow_log(from).await.context("failed to read the log")?;
        let (lanes, begun) = Lanes::new();
        let (term, progress) = (config.term.clone(), Progress::new(lanes.clone()));
        // Dropping this future ends them.
        let mut executor = JoinSet::new();
        executor.spawn(execute::run(
            Executor {
                broker: broker.clone(),
                shared: shared.clone(),
                lanes: lanes.clone(),
                term: term.clone(),
                health: health.clone(),
            },
            begun,
        ));
        let (leading, leads) = watch::channel(false);
        let mut helpers = JoinSet::new();
        let candidate = Candidate {
            broker: broker.clone(),
            id: config.id.clone(),
            instance: config.instance.clone(),
            shared: shared.clone(),
            term: term.clone(),
            progress: progress.clone(),
        };
        helpers.spawn(leader::hold(candidate, leading, shutdown.clone()));
        let (filled, full) = watch::channel(false);
        let (clock, own) = (config.clock.clone(), (term.clone(), filled));
        helpers.spawn(tick(broker.clone(), shared.clone(), clock, own, shutdown.clone()));
        helpers.spawn(members::watch(broker.clone(), shared.clone(), term.clone(), shutdown.clone()));
        helpers.spawn(bury_exhausted(broker.clone(), shutdown.clone()));
        let snapshots = Snapshots::new(shared.lock().seq);
        let traces = Traces::new(config.tracer.clone());
        let mut driver = Driver {
            broker,
            config,
            shared,
            health,
            lanes,
            term,
            progress,
            leads,
            acting: false,
            unread: false,
            snapshots,
            trimming: Trimming::new(),
            collecting: Collecting::new(),
            folded_at: Instant::now(),
            full,
            traces,
            lost: None,
        };
        driver.follow(log, &shutdown).await;
        driver.save_last().await;
        drop(driver);
        while helpers.join_next().await.is_some() {}
        Ok(())
    })
}

/// The result of what ran beside the fold. That it panicked is its failure alone: the next leader would meet the same
/// content, and end of it too.
fn beside<T>(
    action: &'static str,
    ended: Result<Result<T, BrokerError>, JoinError>,
) -> Result<T, BrokerError> {
    ended.unwrap_or_else(|error| {
        tracing::error!(%error, "failed to {action}");
        Err(BrokerError::Invalid { action, reason: error.to_string() })
    })
}

struct Driver {
    broker: Broker,
    config: DriverConfig,
    shared: SharedState,
    health: Health,
    lanes: Lanes,
    term: Term,
    progress: Progress,
    leads: watch::Receiver<bool>,
    acting: bool,
    /// The last read of the log failed. A retry does not count as progress.
    unread: bool,
    snapshots: Snapshots,
    trimming: Trimming,
    collecting: Collecting,
    /// When the newest entries were folded.
    folded_at: Instant,
    /// Whether the log refuses entries for want of room.
    full: watch::Receiver<bool>,
    traces: Traces,
    /// Why folding cannot continue at its position; `None` if it can.
    lost: Option<Lost>,
}

impl Driver {
    async fn follow(&mut self, mut log: Log, shutdown: &CancellationToken) {
        let (mut leads, mut full) = (self.leads.clone(), self.full.clone());
        leads.mark_changed();
        // No entry comes from a full log, and trimming makes room.
        let mut look = tokio::time::interval(self.config.trim.every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !self.unread {
                self.progress.set_idle();
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                changed = leads.changed() => {
                    // A new leader gets the full time without progress, like any leader before it.
                    self.progress.set_busy();
                    if changed.is_err() {
                        return;
                    }
                    let leader = *leads.borrow_and_update();
                    self.health.set_leader(leader);
                    if let Err(error) = self.change(leader, &mut log).await {
                        tracing::error!(?error, "failed to take over; retrying");
                        tokio::time::sleep(PAUSE).await;
                        leads.mark_changed();
                    }
                }
                entries = log.next(FOLD_AT_ONCE), if self.lost.is_none() => {
                    if !self.unread {
                        self.progress.set_busy();
                    }
                    self.on_entries(entries).await;
                }
                Some(written) = self.snapshots.writing.join_next() => {
                    let written = beside("write a snapshot", written);
                    if written.is_ok() {
                        self.trimming.make_due();
                    }
                    self.snapshots.written(written);
                }
                Some(ended) = self.trimming.running.join_next() => {
                    self.trimming.ended(beside("trim the log", ended));
                }
                Some(ended) = self.collecting.running.join_next() => {
                    self.collecting.ended(ended);
                }
                () = tokio::time::sleep(REREAD_LOST_LOG), if self.lost.is_some() => {}
                Ok(()) = full.changed() => self.trimming.make_due(),
                _ = look.tick() => {}
            }
            if let Some(reopened) = self.recover().await {
                log = reopened;
                leads.mark_changed();
            }
            self.save_where_due();
            self.trim_where_due();
            self.collect_where_due();
        }
    }

    /// Starts or stops to act as leader. A new leader first catches up with the log, then executes
    /// all outstanding commands, including those that the leader before it left undone.
    async fn change(&mut self, leader: bool, log: &mut Log) -> Result<(), Unfolded> {
        self.acting = false;
        if !leader {
            self.lanes.restart([]);
            return Ok(());
        }
        self.catch_up(log).await?;
        self.repair_policy_keys(log).await?;
        self.traces.send();
        let state = self.shared.lock();
        tracing::info!(
            seq = state.seq,
            runs = state.runs.len(),
            "leading; executing all outstanding commands"
        );
        self.acting = true;
        let runs = state.runs.keys().cloned().map(LaneId::Run);
        self.lanes.restart(runs.chain([LaneId::All]));
        Ok(())
    }

    async fn on_entries(&mut self, entries: Result<Vec<millrace_queue::Logged>, BrokerError>) {
        let entries = match entries.map_err(Unfolded::Failed).and_then(|entries| self.fresh(entries)) {
            Ok(entries) => entries,
            Err(Unfolded::Lost(lost)) => {
                self.lost = Some(lost);
                return;
            }
            Err(Unfolded::Failed(BrokerError::Queue(QueueError::Lost { .. }))) => {
                self.lost = Some(Lost::End);
                return;
            }
            Err(Unfolded::Failed(BrokerError::Gone { .. })) => {
                self.lost = Some(Lost::Gap);
                return;
            }
            Err(Unfolded::Failed(error)) => {
                self.unread = true;
                self.health.set_connected(false);
                tracing::warn!(%error, "failed to read the log; retrying");
                tokio::time::sleep(PAUSE).await;
                return;
            }
        };
        self.unread = false;
        self.health.set_connected(true);
        self.health.progress();
        metrics::counter!("millrace_events_total").increment(entries.len() as u64);
        let seq = self.fold(entries);
        self.folded_at = Instant::now();
        self.shared.folded(seq);
        self.progress.set_busy();
        self.lanes.room().await;
    }

    fn fold(&mut self, entries: Vec<millrace_queue::Logged>) -> u64 {
        let mut state = self.shared.lock();
        let mut commands = Commands::new();
        for entry in entries {
            state.stored_ns = entry.stored_ns;
            if !state.admits(entry.seq, entry.epoch) {
                tracing::warn!(seq = entry.seq, "skipping an entry that a former leader wrote");
                continue;
            }
            self.traces.follow(entry.epoch, self.term.epoch());
            match entry.event {
                Ok(event) => {
                    let followed = if self.traces.is_on() {
                        state.advance_and_report(entry.seq, &entry.run, event)
                    } else {
                        state.advance(entry.seq, &entry.run, event)
                    };
                    for command in followed {
                        match command {
                            Command::Report { run, milestones } => {
                                self.traces.add(Report { stored_ns: entry.stored_ns, run, milestones });
                            }
                            other => commands.push(other),
                        }
                    }
                }
                Err(error) => {
                    tracing::error!(seq = entry.seq, %error, "an entry of the log cannot be read");
                    state.skip(entry.seq);
                }
            }
        }
        if self.acting {
            self.lanes.push(commands);
        }
        let seq = state.seq;
        drop(state);
        if self.acting {
            self.traces.send();
        }
        seq
    }
}

/// Appends ticks to the log while this coordinator leads and a run is live. Reports whether the log
/// refused the last one for want of room.
///
/// Consumes: the clock. Produces: ticks. Waits for: the interval. Unblocked by: `shutdown`. On
/// failure: the next tick follows.
async fn tick(
    broker: Broker,
    shared: SharedState,
    clock: UnixClock,
    (term, full): (Term, watch::Sender<bool>),
    shutdown: CancellationToken,
) {
    let mut interval = tokio::time::interval(Duration::from_millis(TICK_MS));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut paused = gauges::Paused::default();
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        let live = gauges::set(&shared.lock(), &mut paused);
        if !live || !term.holds() {
            continue;
        }
        let tick = Event::Tick { unix_ms: clock.unix_ms() };
        let appended = broker.append_led(ALL_RUNS, &tick, term.epoch()).await;
        if let Err(error) = &appended {
            tracing::warn!(%error, "failed to append a tick");
        }
        let is_full = matches!(&appended, Err(BrokerError::Queue(error)) if error.is_full());
        full.send_if_modified(|full| std::mem::replace(full, is_full) != is_full);
    }
}

/// Buries tasks that exhausted their deliveries.
///
/// Every coordinator does this, leader or standby: an advisory of the server is a fact and no
/// decision, each advisory goes to one coordinator, and burying twice is harmless.
///
/// Consumes: the server's advisories. Produces: dead letters and events. Waits for: advisories.
/// Unblocked by: `shutdown`. On failure: subscribes again; an advisory is redelivered until it is
/// settled.
async fn bury_exhausted(broker: Broker, shutdown: CancellationToken) {
    let forever = async {
        loop {
            let result: Result<(), BrokerError> = async {
                let mut exhausted = broker.exhausted().await?;
                loop {
                    let task = exhausted.next().await?;
                    broker.bury_exhausted(&task).await?;
                }
            }
            .await;
            if let Err(error) = result {
                tracing::warn!(%error, "failed to bury a task that exhausted its deliveries; retrying");
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    shutdown.run_until_cancelled(forever).await;
}
