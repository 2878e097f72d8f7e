//! Leader election by a lease in a key. The leader renews the lease while it makes progress;
//! without progress it offers the lease to the standbys. Two leaders of the same log would give the
//! same commands, and most commands are idempotent. The others are written with the leader's epoch,
//! and are refused or skipped once a later epoch has written (fencing).
//!
//! A process that was stopped for longer than its lease still has commands from before when it
//! continues. [`Term`] keeps it from executing them: another leader has done so since.

use std::time::Duration;

use millrace_queue::port::{Expect, KeyValue, Written};
use millrace_queue::{Broker, QueueError};
use millrace_schemas::limits::{LEADER_STALL_MS, LEASE_MS, LEASE_RENEW_MS, MAX_LEADER_DOUBLINGS};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::shell::shared::SharedState;

pub use progress::Progress;
pub use term::Term;

mod progress;
mod term;

const LEASE: Duration = Duration::from_millis(LEASE_MS);

/// The value of the lease's key, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    /// The coordinator's name; empty if the lease was given up.
    holder: String,
    /// Id of the process. Another process of the same name replaces it at once.
    instance: String,
    /// Incremented when another process takes the lease.
    epoch: u64,
    /// Leaders in a row that gave the lease up for lack of progress.
    #[serde(default)]
    handovers: u32,
}

/// The name of the coordinator that has the lease; empty if it was given up, `None` if there is none.
///
/// # Errors
/// The queue fails.
pub async fn lease_holder(broker: &Broker) -> Result<Option<String>, QueueError> {
    let value = broker.queue().get_latest(COORDINATOR_BUCKET, LEASE_KEY).await?;
    let lease = value.and_then(|value| serde_json::from_slice::<Lease>(&value.value).ok());
    Ok(lease.map(|lease| lease.holder))
}

/// The result of reading or writing the key.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// This process holds the lease.
    Held,
    /// Another process holds the lease, or may still hold it.
    Waiting,
}

/// A coordinator that may become the leader.
pub struct Candidate {
    /// The queue that holds the lease's key.
    pub broker: Broker,
    /// The coordinator's name. Another instance of the same name replaces this one.
    pub id: String,
    /// Id of the process.
    pub instance: String,
    /// The state, whose epoch keeps any epoch from being used twice, even if the key was lost.
    pub shared: SharedState,
    /// The term within which it may act.
    pub term: Term,
    /// Whether it makes progress.
    pub progress: Progress,
}

/// Holds the lease or waits for it, until `shutdown`; then gives it up.
///
/// Consumes: the lease's key; progress. Produces: the same key; `leading`, sent again if the term
/// had run out in between; the term; probes of lanes without progress. Waits for: the interval of
/// renewal; for a response at most the length of a lease. Unblocked by: `shutdown`. On failure:
/// stops leading once the lease may have run out. Without progress for [`LEADER_STALL_MS`], doubled
/// with each such leader in a row: offers the lease, and takes it back if no other process did
/// within its length.
pub async fn hold(candidate: Candidate, leading: watch::Sender<bool>, shutdown: CancellationToken) {
    let (term, progress) = (candidate.term.clone(), candidate.progress.clone());
    let mut keeper = Keeper::new(candidate);
    let mut interval = tokio::time::interval(Duration::from_millis(LEASE_RENEW_MS));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        let asked = term.now();
        if *leading.borrow() && keeper.must_give_up().await {
            leading.send_replace(false);
            continue;
        }
        if progress.unfit().is_some() {
            continue;
        }
        let (leads, restarted) = match timeout(LEASE, keeper.step()).await {
            Ok(Ok(Step::Held)) => (true, term.extend(asked + LEASE, keeper.lease.epoch)),
            Ok(Ok(Step::Waiting)) => {
                term.end();
                (false, false)
            }
            Ok(Err(error)) => {
                let leads = *leading.borrow();
                tracing::warn!(%error, "failed to {} the lease", if leads { "renew" } else { "ask for" });
                (leads && term.holds(), false)
            }
            Err(_) => {
                tracing::warn!("failed to renew the lease: no response");
                (false, false)
            }
        };
        leading.send_if_modified(|was| std::mem::replace(was, leads) != leads || restarted);
    }
    term.end();
    if *leading.borrow() {
        keeper.give_up().await;
    }
}

struct Keeper {
    of: Candidate,
    lease: Lease,
    /// Revision of the last write, if this process made it.
    own: Option<u64>,
    /// Revision of another process's last write, and when it was first seen.
    seen: Option<(u64, Instant)>,
    /// When this process took the lease.
    since: Instant,
    /// When it last gave the lease up for lack of progress.
    offered: Option<Instant>,
}

impl Keeper {
    fn new(of: Candidate) -> Self {
        let (holder, instance) = (of.id.clone(), of.instance.clone());
        let lease = Lease { holder, instance, epoch: 0, handovers: 0 };
        let since = of.term.now();
        Self { of, lease, own: None, seen: None, since, offered: None }
    }

    /// Renews the lease by the revision of its own last write, without a read, so that a replica
    /// that is behind cannot mislead it. Reads only if another process may have written.
    async fn step(&mut self) -> Result<Step, QueueError> {
        if let Some(revision) = self.own {
            let floor = self.of.shared.latest_epoch();
            // The log or a policy key has a later epoch than this key: the key was lost, or another
            // program wrote it.
            let epoch = if floor > self.lease.epoch { floor.saturating_add(1) } else { self.lease.epoch };
            if self.write(epoch, Expect::Revision(revision)).await? == Step::Held {
                return Ok(Step::Held);
            }
        }
        let Some(value) = self.of.broker.queue().get_latest(COORDINATOR_BUCKET, LEASE_KEY).await? else {
            return self.take(0, Expect::Absent).await;
        };
        let expect = Expect::Revision(value.revision);
        let Ok(stored) = serde_json::from_slice::<Lease>(&value.value) else {
            return self.take(0, expect).await;
        };
        if stored.instance == self.lease.instance {
            let offered = |at: Instant| stored.holder.is_empty() && self.ago(at) < LEASE;
            if self.offered.is_some_and(offered) {
                return Ok(Step::Waiting);
            }
            if !stored.holder.is_empty() {
                // Its own write, whose response was lost.
                return self.write(stored.epoch, expect).await;
            }
        }
        // A restarted process takes its name's lease at once. A process that held the lease and
        // lost it to another of the same name waits as for any other: two processes of one name
        // must not alternate.
        let restarted = stored.holder == self.lease.holder && self.lease.epoch == 0;
        let free = stored.holder.is_empty() || restarted;
        if free || self.has_run_out(&value) {
            self.lease.handovers = stored.handovers;
            return self.take(stored.epoch, expect).await;
        }
        Ok(Step::Waiting)
    }

    /// How long ago `at` was, by this machine's clock.
    fn ago(&self, at: Instant) -> Duration {
        self.of.term.now().saturating_duration_since(at)
    }

    /// Whether this process observed no renewal for the length of the lease. No two clocks are
    /// compared.
    fn has_run_out(&mut self, value: &KeyValue) -> bool {
        match self.seen {
            Some((revision, since)) if revision == value.revision => self.ago(since) >= LEASE,
            _ => {
                self.seen = Some((value.revision, self.of.term.now()));
                false
            }
        }
    }

    /// Takes the lease, with an epoch later than any that the key, the log or this process knows.
    async fn take(&mut self, stored: u64, expect: Expect) -> Result<Step, QueueError> {
        let known = stored.max(self.of.shared.latest_epoch()).max(self.lease.epoch);
        self.since = self.of.term.now();
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

    /// How long a leader may be without progress.
    const fn patience(&self) -> Duration {
        let doublings = if self.lease.handovers < MAX_LEADER_DOUBLINGS {
            self.lease.handovers
        } else {
            MAX_LEADER_DOUBLINGS
        };
        Duration::from_millis(LEADER_STALL_MS << doublings)
    }

    /// Gives the lease up if this process must not lead or makes no progress. Returns whether it
    /// did.
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
                if self.ago(self.since) > patience && self.of.progress.is_healthy() {
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
        let released = timeout(LEASE, self.write(self.lease.epoch, Expect::Revision(revision))).await;
        self.lease.holder = name;
        (self.own, self.offered) = (None, Some(self.of.term.now()));
        if !matches!(released, Ok(Ok(_))) {
            tracing::warn!("failed to give the lease up; it will run out");
        }
    }
}
