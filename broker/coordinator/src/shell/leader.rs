//! Who acts: a lease in a key, held by renewing it, and renewed by progress: a leader that does not get on offers it to
//! the standbys. Two that act on the same log give the same commands, and doing a command twice is harmless; what is
//! not is written with the leader's epoch, and refused or passed over when a later one has written.
//!
//! A process that was stopped for longer than its lease finds, when it goes on, commands that it had decided on
//! before. [`Term`] keeps it from doing them: another has done them since.

use std::time::Duration;

use millrace_queue::port::{Expect, KeyValue, Written};
use millrace_queue::{Broker, QueueError};
use millrace_schemas::limits::{LEADER_STALL_MS, LEASE_MS, LEASE_RENEW_MS, MAX_LEADER_DOUBLINGS};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::shell::shared::Shared;

pub use progress::Progress;
pub use term::{BootClock, Term};

mod progress;
mod term;

const LEASE: Duration = Duration::from_millis(LEASE_MS);

/// The value of the lease's key, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    /// The coordinator's name; empty when it was given up.
    holder: String,
    /// The process: another one of the same name replaces it at once.
    instance: String,
    /// One more with each change of process.
    epoch: u64,
    /// Leaders in a row that gave it up for want of progress.
    #[serde(default)]
    handovers: u32,
}

/// What a look at the key led to.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// This process holds the lease.
    Held,
    /// Another does.
    Waiting,
}

/// One of those that may lead.
pub struct Candidate {
    /// Where the lease is.
    pub broker: Broker,
    /// What it stands for: another instance of the same id takes its place.
    pub id: String,
    /// Names the process.
    pub instance: String,
    /// What it knows of the log: no epoch is given out twice, even where the key was lost.
    pub shared: Shared,
    /// Until when it may act.
    pub term: Term,
    /// Whether it gets on.
    pub progress: Progress,
}

/// Holds the lease, or waits for it, until `shutdown`; then gives it up.
///
/// Consumes: the lease's key; progress. Produces: the same key; `leading`, told again whenever the term had run out in
/// between; the term; probes of lanes that do not get on. Waits for: the interval of renewal, and for an answer no
/// longer than a lease. Unblocked by: `shutdown`. On failure: stops leading once the lease may have run out. Without
/// progress for [`LEADER_STALL_MS`], doubled with each leader in a row: offers the lease, and takes it again when
/// nobody else did within its length.
pub async fn hold(candidate: Candidate, leading: watch::Sender<bool>, shutdown: CancellationToken) {
    let (term, progress) = (candidate.term.clone(), candidate.progress.clone());
    let mut keeper = Keeper::new(candidate);
    let mut interval = tokio::time::interval(Duration::from_millis(LEASE_RENEW_MS));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        let asked = Instant::now();
        if *leading.borrow() && keeper.must_give_up().await {
            leading.send_replace(false);
            continue;
        }
        if progress.unfit().is_some() {
            continue;
        }
        let (leads, again) = match timeout(LEASE, keeper.step()).await {
            Ok(Ok(Step::Held)) => (true, term.extend(asked + LEASE, keeper.lease.epoch)),
            Ok(Ok(Step::Waiting)) => {
                term.end();
                (false, false)
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "failed to renew the lease");
                (*leading.borrow() && term.holds(), false)
            }
            Err(_) => {
                tracing::warn!("failed to renew the lease: no answer");
                (false, false)
            }
        };
        leading.send_if_modified(|was| std::mem::replace(was, leads) != leads || again);
    }
    term.end();
    if *leading.borrow() {
        keeper.give_up().await;
    }
}

struct Keeper {
    of: Candidate,
    lease: Lease,
    /// Revision of the last write, where it was this process's own.
    own: Option<u64>,
    /// The last revision seen of another's, and since when.
    seen: Option<(u64, Instant)>,
    /// Since when it leads.
    since: Instant,
    /// When it last gave the lease up for want of progress.
    offered: Option<Instant>,
}

impl Keeper {
    fn new(of: Candidate) -> Self {
        let (holder, instance) = (of.id.clone(), of.instance.clone());
        let lease = Lease { holder, instance, epoch: 0, handovers: 0 };
        Self { of, lease, own: None, seen: None, since: Instant::now(), offered: None }
    }

    /// Renews by the revision of its own last write, which needs no reading: a replica that is behind cannot mislead
    /// it. Reads only what another may have written.
    async fn step(&mut self) -> Result<Step, QueueError> {
        if let Some(revision) = self.own {
            let floor = self.of.shared.latest_epoch();
            // The log, or another key, knows a later leader than this key does: it was lost, or written by a stranger.
            let epoch = if floor > self.lease.epoch { floor.saturating_add(1) } else { self.lease.epoch };
            if self.write(epoch, Expect::Revision(revision)).await? == Step::Held {
                return Ok(Step::Held);
            }
        }
        let Some(value) = self.of.broker.queue().get_latest(COORDINATOR_BUCKET, LEASE_KEY).await? else {
            return self.take(0, Expect::Absent).await;
        };
        let expect = Expect::Revision(value.revision);
        let Ok(standing) = serde_json::from_slice::<Lease>(&value.value) else {
            return self.take(0, expect).await;
        };
        if standing.instance == self.lease.instance {
            let offered = |at: Instant| standing.holder.is_empty() && at.elapsed() < LEASE;
            if self.offered.is_some_and(offered) {
                return Ok(Step::Waiting);
            }
            if !standing.holder.is_empty() {
                // Its own write, whose answer was lost.
                return self.write(standing.epoch, expect).await;
            }
        }
        // A process that starts again takes its name's lease at once. One that held it before and lost it to
        // another of its name waits as for anybody else: two of one name must not take turns.
        let restarted = standing.holder == self.lease.holder && self.lease.epoch == 0;
        let free = standing.holder.is_empty() || restarted;
        if free || self.has_run_out(&value) {
            self.lease.handovers = standing.handovers;
            return self.take(standing.epoch, expect).await;
        }
        Ok(Step::Waiting)
    }

    /// Whether this process itself saw the lease go unrenewed for its whole length: no two clocks compared.
    fn has_run_out(&mut self, value: &KeyValue) -> bool {
        match self.seen {
            Some((revision, since)) if revision == value.revision => since.elapsed() >= LEASE,
            _ => {
                self.seen = Some((value.revision, Instant::now()));
                false
            }
        }
    }

    /// Begins to lead, with an epoch later than any that the key, the log or this process knows.
    async fn take(&mut self, standing: u64, expect: Expect) -> Result<Step, QueueError> {
        let known = standing.max(self.of.shared.latest_epoch()).max(self.lease.epoch);
        self.since = Instant::now();
        self.write(known.saturating_add(1), expect).await
    }

    async fn write(&mut self, epoch: u64, expect: Expect) -> Result<Step, QueueError> {
        let lease = Lease { epoch, ..self.lease.clone() };
        let value = serde_json::to_vec(&lease).expect("a lease holds only what JSON can express");
        match self.of.broker.queue().set(COORDINATOR_BUCKET, LEASE_KEY, value.into(), expect).await? {
            Written::At(revision) => {
                (self.lease.epoch, self.own) = (epoch, Some(revision));
                Ok(Step::Held)
            }
            Written::Conflict => {
                self.own = None;
                Ok(Step::Waiting)
            }
        }
    }

    /// For how long a leader may be without progress.
    const fn patience(&self) -> Duration {
        let doublings = if self.lease.handovers < MAX_LEADER_DOUBLINGS {
            self.lease.handovers
        } else {
            MAX_LEADER_DOUBLINGS
        };
        Duration::from_millis(LEADER_STALL_MS << doublings)
    }

    /// Gives the lease up where this process must not lead, or does not get on; says whether it did.
    async fn must_give_up(&mut self) -> bool {
        let patience = self.patience();
        let why = match (self.of.progress.unfit(), self.of.progress.stalled(patience)) {
            (Some(why), _) => why,
            (None, Some(why)) => {
                self.lease.handovers = self.lease.handovers.saturating_add(1);
                why.to_owned()
            }
            (None, None) => {
                self.of.progress.watch(patience / 2);
                if self.since.elapsed() > patience && self.of.progress.is_well() {
                    self.lease.handovers = 0;
                }
                return false;
            }
        };
        tracing::error!(why, "offering the lease to another coordinator");
        metrics::counter!("millrace_leader_handovers_total").increment(1);
        self.of.term.end();
        self.give_up().await;
        true
    }

    /// Lets another take over at once.
    async fn give_up(&mut self) {
        let Some(revision) = self.own else { return };
        let name = std::mem::take(&mut self.lease.holder);
        let given = timeout(LEASE, self.write(self.lease.epoch, Expect::Revision(revision))).await;
        self.lease.holder = name;
        (self.own, self.offered) = (None, Some(Instant::now()));
        if !matches!(given, Ok(Ok(_))) {
            tracing::warn!("failed to give the lease up; it runs out by itself");
        }
    }
}
