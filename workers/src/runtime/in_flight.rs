//! The tasks in flight in this process: for the heartbeat, for early cancellation, and for the
//! drain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_queue::port::Lease;
use millrace_schemas::limits::HEARTBEATS;
use millrace_schemas::{PolicyVersion, RunId, Stage, Task, TaskKey};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::policy_table::PolicyTable;

/// All tasks in flight, of all stages.
#[derive(Default)]
pub(super) struct InFlight {
    entries: Mutex<Entries>,
    /// Between two heartbeats; `None` until the length of a pool's leases is known.
    heartbeat_interval: watch::Sender<Option<Duration>>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    /// Ordered, so that a simulation that is repeated sends the same heartbeats in the same order.
    by_id: BTreeMap<u64, Entry>,
    /// The worker leaves: tasks that arrive from here on are cancelled at once.
    leaving: bool,
}

struct Entry {
    lease: Arc<dyn Lease>,
    /// `None` until the task is decoded.
    subject: Option<StalenessKey>,
    cancel: CancellationToken,
}

/// The facts of a task that decide whether it is stale.
struct StalenessKey {
    run: RunId,
    key: TaskKey,
    version: PolicyVersion,
    evaluate: bool,
}

/// A task in flight. Dropping it ends its heartbeats.
pub(super) struct InFlightTask {
    in_flight: Arc<InFlight>,
    id: u64,
    /// Fires when the task became stale or the worker must leave.
    pub(super) cancel: CancellationToken,
}

impl InFlight {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // A panic cannot leave the entries half changed.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a delivered task: it gets heartbeats from now on.
    #[must_use]
    pub(super) fn add(self: &Arc<Self>, lease: Arc<dyn Lease>) -> InFlightTask {
        let cancel = CancellationToken::new();
        let mut entries = self.entries();
        if entries.leaving {
            cancel.cancel();
        }
        let id = entries.next;
        entries.next += 1;
        entries.by_id.insert(id, Entry { lease, subject: None, cancel: cancel.clone() });
        InFlightTask { in_flight: self.clone(), id, cancel }
    }

    /// Notes how long a pool's leases are. The shortest known lease decides the heartbeat interval.
    pub(super) fn note_lease_length(&self, ack_wait: Duration) {
        let interval = ack_wait / HEARTBEATS;
        self.heartbeat_interval.send_if_modified(|known| {
            let is_shorter = known.is_none_or(|known| known > interval);
            if is_shorter {
                *known = Some(interval);
            }
            is_shorter
        });
    }

    /// Between two heartbeats; `None` until the length of a pool's leases is known.
    #[must_use]
    pub(super) fn heartbeat_interval(&self) -> watch::Receiver<Option<Duration>> {
        self.heartbeat_interval.subscribe()
    }

    /// The leases of all tasks in flight.
    #[must_use]
    pub(super) fn leases(&self) -> Vec<Arc<dyn Lease>> {
        self.entries().by_id.values().map(|entry| entry.lease.clone()).collect()
    }

    /// Cancels the tasks that became stale.
    pub(super) fn cancel_stale(&self, policies: &PolicyTable) {
        let is_stale = |of: &StalenessKey| policies.is_stale(&of.run, of.key, of.version, of.evaluate);
        for entry in self.entries().by_id.values() {
            if entry.subject.as_ref().is_some_and(is_stale) {
                entry.cancel.cancel();
            }
        }
    }

    /// Cancels all tasks, also those that arrive later.
    pub(super) fn cancel_all(&self) {
        self.cancel_all_but(|_| false);
    }

    /// Cancels all tasks but those of the stages for which `ends` holds; also tasks that arrive
    /// later, of whatever stage.
    pub(super) fn cancel_all_but(&self, ends: impl Fn(Stage) -> bool) {
        let mut entries = self.entries();
        entries.leaving = true;
        for entry in entries.by_id.values() {
            if !entry.subject.as_ref().is_some_and(|of| ends(of.key.stage())) {
                entry.cancel.cancel();
            }
        }
    }
}

impl InFlightTask {
    /// Notes what the task is, so that it can be cancelled when it becomes stale. The caller must
    /// check staleness after this, not before: otherwise it misses a policy that arrives in
    /// between.
    pub(super) fn describe(&self, task: &Task) {
        let subject = StalenessKey {
            run: task.run.clone(),
            key: task.key,
            version: task.version,
            evaluate: task.evaluate,
        };
        if let Some(entry) = self.in_flight.entries().by_id.get_mut(&self.id) {
            entry.subject = Some(subject);
        }
    }
}

impl Drop for InFlightTask {
    fn drop(&mut self) {
        self.in_flight.entries().by_id.remove(&self.id);
    }
}
