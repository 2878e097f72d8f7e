//! The one async loop around the fold: events in, advance, commands out. Any number of coordinators follow
//! the log; the one that holds the lease acts.

use std::time::Duration;

use anyhow::Context;
use futures::future::BoxFuture;
use millrace_queue::{Broker, BrokerError, Log, QueueError};
use millrace_schemas::Event;
use millrace_schemas::limits::{SNAPSHOT_EVENTS, TICK_MS};
use millrace_schemas::subjects::ALL_RUNS;
use millrace_telemetry::Health;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::fold::command::Commands;
use crate::shell::clock::UnixClock;
use crate::shell::execute::Executor;
use crate::shell::lanes::{LaneId, Lanes};
use crate::shell::leader::{Candidate, Progress, Term};
use crate::shell::shared::Shared;
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

/// Entries of the log folded at once.
const FOLD_AT_ONCE: usize = 1_024;
/// Before the log is read again after a failure.
const PAUSE: Duration = Duration::from_millis(200);

/// Before a log that cannot be folded is looked at again.
const AGAIN: Duration = Duration::from_secs(5);

/// How a coordinator behaves.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// Its name: a coordinator that starts again under the same name takes its lease back at once.
    pub id: String,
    /// Names this process: no two that run ever share it.
    pub instance: String,
    /// Events folded between two snapshots.
    pub snapshot_events: u64,
    /// How the log is trimmed behind snapshots.
    pub trim: TrimSettings,
    /// Where ticks come from.
    pub clock: UnixClock,
}

impl DriverConfig {
    /// The usual settings for a coordinator named `id`.
    #[must_use]
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            instance: uuid::Uuid::now_v7().to_string(),
            snapshot_events: SNAPSHOT_EVENTS,
            trim: TrimSettings::default(),
            clock: UnixClock::system(),
        }
    }
}

/// Loads the newest snapshot and shares it. The topology must be there.
///
/// # Errors
/// The queue or the object store cannot be reached, or refuses.
pub async fn restore(broker: &Broker) -> anyhow::Result<Shared> {
    broker.queue().ensure_topology().await.context("failed to make streams and buckets")?;
    Ok(Shared::new(journal::restore(broker).await.context("failed to load the newest snapshot")?))
}

/// Follows the log and, while it holds the lease, acts.
///
/// Consumes: the log; the lease. Produces: commands in their lanes; snapshots. Waits for: entries of the
/// log, and for a moment for room in the lanes. Unblocked by: `shutdown`. On failure: reads the log again from where it was; where
/// the log lost what was folded, folds what is left of it anew. The future is boxed, so that it is compiled once.
///
/// # Errors
/// The log cannot be opened at the start.
pub fn run(
    broker: Broker,
    config: DriverConfig,
    shared: Shared,
    health: Health,
    shutdown: CancellationToken,
) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        let from = shared.lock().seq.max(1);
        let log = broker.follow_log(from).await.context("failed to read the log")?;
        let (lanes, begun) = Lanes::new();
        let (term, progress) = (Term::on(config.clock.boot()), Progress::new(lanes.clone()));
        // They end with this future, should it be dropped.
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
        let clock = config.clock.clone();
        helpers.spawn(tick(broker.clone(), shared.clone(), clock, term.clone(), shutdown.clone()));
        helpers.spawn(members::watch(broker.clone(), shared.clone(), term.clone(), shutdown.clone()));
        helpers.spawn(bury_exhausted(broker.clone(), shutdown.clone()));
        let snapshots = Snapshots::new(shared.lock().seq);
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
            lost: None,
        };
        driver.follow(log, &shutdown).await;
        driver.save_last().await;
        drop(driver);
        while helpers.join_next().await.is_some() {}
        Ok(())
    })
}

struct Driver {
    broker: Broker,
    config: DriverConfig,
    shared: Shared,
    health: Health,
    lanes: Lanes,
    term: Term,
    progress: Progress,
    leads: watch::Receiver<bool>,
    acting: bool,
    /// The log could not be read when it was read last. Trying again is no progress.
    unread: bool,
    snapshots: Snapshots,
    trimming: Trimming,
    collecting: Collecting,
    /// Why folding cannot go on where it is.
    lost: Option<Lost>,
}

impl Driver {
    async fn follow(&mut self, mut log: Log, shutdown: &CancellationToken) {
        let mut leads = self.leads.clone();
        leads.mark_changed();
        loop {
            if !self.unread {
                self.progress.rests();
            }
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                changed = leads.changed() => {
                    // Whoever begins to lead has as long as any leader before it.
                    self.progress.folds();
                    if changed.is_err() {
                        return;
                    }
                    let leader = *leads.borrow_and_update();
                    self.health.set_leader(leader);
                    if let Err(error) = self.change(leader, &mut log).await {
                        tracing::error!(?error, "failed to take over; trying again");
                        tokio::time::sleep(PAUSE).await;
                        leads.mark_changed();
                    }
                }
                entries = log.next(FOLD_AT_ONCE), if self.lost.is_none() => {
                    if !self.unread {
                        self.progress.folds();
                    }
                    self.on_entries(entries).await;
                }
                Some(written) = self.snapshots.writing.join_next() => {
                    let written = written.expect("writing a snapshot does not panic");
                    if let Ok(need) = &written {
                        self.trimming.saved(*need);
                    }
                    self.snapshots.written(written);
                }
                Some(ended) = self.trimming.running.join_next() => {
                    self.trimming.ended(ended.expect("trimming does not panic"));
                }
                Some(ended) = self.collecting.running.join_next() => {
                    self.collecting.ended(ended.expect("collecting does not panic"));
                }
                () = tokio::time::sleep(AGAIN), if self.lost.is_some() => {}
            }
            if let Some(again) = self.recover().await {
                log = again;
                leads.mark_changed();
            }
            self.save_where_due();
            self.trim_where_due();
            self.collect_where_due();
        }
    }

    /// Begins or stops to act. Whoever begins first catches up with the log, then does all that is
    /// outstanding: what the one before left undone is among it.
    async fn change(&mut self, leader: bool, log: &mut Log) -> Result<(), Unfolded> {
        self.acting = false;
        if !leader {
            self.lanes.restart([]);
            return Ok(());
        }
        self.catch_up(log).await?;
        self.mend_keys(log).await?;
        let state = self.shared.lock();
        tracing::info!(seq = state.seq, runs = state.runs.len(), "acting: doing all that is outstanding");
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
                tracing::warn!(%error, "failed to read the log; trying again");
                tokio::time::sleep(PAUSE).await;
                return;
            }
        };
        self.unread = false;
        self.health.set_connected(true);
        self.health.progress();
        metrics::counter!("millrace_events_total").increment(entries.len() as u64);
        let seq = self.fold(entries);
        self.shared.folded(seq);
        self.progress.folds();
        self.lanes.room().await;
    }

    fn fold(&self, entries: Vec<millrace_queue::Logged>) -> u64 {
        let mut state = self.shared.lock();
        let mut commands = Commands::new();
        for entry in entries {
            state.stored_ns = entry.stored_ns;
            if !state.admits(entry.seq, entry.epoch) {
                tracing::warn!(seq = entry.seq, "passing over what a former leader wrote");
                continue;
            }
            match entry.event {
                Ok(event) => commands.extend(state.advance(entry.seq, &entry.run, event)),
                Err(error) => {
                    tracing::error!(seq = entry.seq, %error, "an entry of the log cannot be read");
                    state.skip(entry.seq);
                }
            }
        }
        if self.acting {
            self.lanes.push(commands);
        }
        state.seq
    }
}

/// Brings time into the log while this coordinator leads and a run is live.
///
/// Consumes: the clock. Produces: ticks. Waits for: the interval. Unblocked by: `shutdown`. On failure: the
/// next tick comes anyway.
async fn tick(broker: Broker, shared: Shared, clock: UnixClock, term: Term, shutdown: CancellationToken) {
    let mut interval = tokio::time::interval(Duration::from_millis(TICK_MS));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        let live = gauges::set(&shared.lock());
        if !live || !term.holds() {
            continue;
        }
        let tick = Event::Tick { unix_ms: clock.unix_ms() };
        if let Err(error) = broker.append_led(ALL_RUNS, &tick, term.epoch()).await {
            tracing::warn!(%error, "failed to append a tick");
        }
    }
}

/// Moves tasks that were delivered too often to the dead letters.
///
/// Each coordinator does, leader or not: what the server says is a fact and no decision, an advisory goes to one of
/// them, and burying twice is harmless.
///
/// Consumes: the server's advisories. Produces: dead letters and events. Waits for: advisories. Unblocked
/// by: `shutdown`. On failure: opens the advisories again; each is given until it is settled.
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
                tracing::warn!(%error, "failed to bury a task that was delivered too often; trying again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    shutdown.run_until_cancelled(forever).await;
}
