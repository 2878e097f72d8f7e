//! Who acts: a lease in a key, held by renewing it. Nothing rests on its being exclusive: two that act on the
//! same log give the same commands, and doing a command twice is harmless. It saves work, and says who.
//!
//! A process that was stopped for longer than its lease finds, when it goes on, commands that it had decided on
//! before. [`Term`] keeps it from doing them: another has done them since.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_queue::port::{Expect, KeyValue, Written};
use millrace_queue::{Broker, QueueError};
use millrace_schemas::limits::{LEASE_MS, LEASE_RENEW_MS};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, LEASE_KEY};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

/// The value of the lease's key, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Lease {
    /// The coordinator's name; empty when it was given up.
    holder: String,
    /// The process: another one of the same name replaces it at once.
    instance: String,
    /// One more with each change of process.
    epoch: u64,
}

/// What a look at the key led to.
enum Step {
    /// This process holds the lease.
    Held,
    /// Another does.
    Waiting,
}

/// Until when this process may act without asking again. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Term(Arc<Mutex<Option<Instant>>>);

impl Term {
    /// Whether it may act now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    /// May act until then. Says whether the term was over before: whatever was left undone since then is to be
    /// done now.
    pub fn extend(&self, until: Instant) -> bool {
        let mut term = self.until();
        let over = term.is_none_or(|until| Instant::now() >= until);
        *term = Some(until);
        over
    }

    /// May not act any more.
    pub fn end(&self) {
        *self.until() = None;
    }

    fn until(&self) -> MutexGuard<'_, Option<Instant>> {
        // A time cannot be left half written.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holds the lease, or waits for it, until `shutdown`; then gives it up. `instance` names the process, `id`
/// what it stands for: another instance of the same id takes its place.
///
/// Consumes: the lease's key. Produces: the same key; `leading`, told anew whenever the term had run out in
/// between; `term`. Waits for: the interval of renewal, and for an answer no longer than a lease. Unblocked by:
/// `shutdown`. On failure: stops leading once the lease may have run out.
pub async fn hold(
    broker: Broker,
    (id, instance): (String, String),
    leading: watch::Sender<bool>,
    term: Term,
    shutdown: CancellationToken,
) {
    const LEASE: Duration = Duration::from_millis(LEASE_MS);
    let mut candidate = Candidate { broker, lease: Lease { holder: id, instance, epoch: 0 }, seen: None };
    let mut interval = tokio::time::interval(Duration::from_millis(LEASE_RENEW_MS));
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(interval.tick()).await.is_some() {
        let asked = Instant::now();
        let (leads, anew) = match timeout(LEASE, candidate.step()).await {
            Ok(Ok(Step::Held)) => (true, term.extend(asked + LEASE)),
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
        leading.send_if_modified(|was| std::mem::replace(was, leads) != leads || anew);
    }
    term.end();
    if *leading.borrow() {
        candidate.give_up().await;
    }
}

struct Candidate {
    broker: Broker,
    lease: Lease,
    /// The last revision seen, and since when.
    seen: Option<(u64, Instant)>,
}

impl Candidate {
    async fn step(&mut self) -> Result<Step, QueueError> {
        let Some(value) = self.broker.queue().get(COORDINATOR_BUCKET, LEASE_KEY).await? else {
            return self.write(1, Expect::Absent).await;
        };
        let expect = Expect::Revision(value.revision);
        let Ok(standing) = serde_json::from_slice::<Lease>(&value.value) else {
            return self.write(1, expect).await;
        };
        if standing.instance == self.lease.instance {
            return self.write(standing.epoch, expect).await;
        }
        // A process that starts again takes its name's lease at once. One that held it before and lost it to
        // another of its name waits as for anybody else: two of one name must not take turns.
        let restarted = standing.holder == self.lease.holder && self.lease.epoch == 0;
        let free = standing.holder.is_empty() || restarted;
        if free || self.has_run_out(&value) {
            return self.write(standing.epoch + 1, expect).await;
        }
        Ok(Step::Waiting)
    }

    /// Whether this process itself saw the lease go unrenewed for its whole length: no two clocks compared.
    fn has_run_out(&mut self, value: &KeyValue) -> bool {
        match self.seen {
            Some((revision, since)) if revision == value.revision => {
                since.elapsed() >= Duration::from_millis(LEASE_MS)
            }
            _ => {
                self.seen = Some((value.revision, Instant::now()));
                false
            }
        }
    }

    async fn write(&mut self, epoch: u64, expect: Expect) -> Result<Step, QueueError> {
        let lease = Lease { epoch, ..self.lease.clone() };
        let value = serde_json::to_vec(&lease).expect("a lease holds only what JSON can express");
        match self.broker.queue().set(COORDINATOR_BUCKET, LEASE_KEY, value.into(), expect).await? {
            Written::At(_) => {
                self.lease.epoch = epoch;
                Ok(Step::Held)
            }
            Written::Conflict => Ok(Step::Waiting),
        }
    }

    /// Lets another take over at once.
    async fn give_up(&mut self) {
        self.lease.holder = String::new();
        if let Err(error) = self.step().await.map(|_| ()) {
            tracing::warn!(%error, "failed to give the lease up; it runs out by itself");
        }
    }
}
