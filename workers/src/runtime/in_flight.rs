//! The tasks that this process holds: for the heartbeat, for early cancel, and for the drain.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_queue::port::Lease;
use millrace_schemas::limits::HEARTBEATS;
use millrace_schemas::{PolicyVersion, RunId, Task, TaskKey};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::policy_table::PolicyTable;

/// All tasks in hand, of all stages.
#[derive(Default)]
pub(super) struct InHand {
    entries: Mutex<Entries>,
    /// Between two signs of life; `None` until a pool's leases are known.
    pace: watch::Sender<Option<Duration>>,
}

#[derive(Default)]
struct Entries {
    next: u64,
    /// Ordered, so that the same tasks are told in the same order.
    by_id: BTreeMap<u64, Entry>,
    /// The worker leaves: whatever is taken from here on is cancelled at once.
    leaving: bool,
}

struct Entry {
    lease: Arc<dyn Lease>,
    /// What it is, once it was read.
    work: Option<Work>,
    cancel: CancellationToken,
}

/// What staleness is judged by.
struct Work {
    run: RunId,
    key: TaskKey,
    version: PolicyVersion,
    evaluate: bool,
}

/// A task in hand; let go when dropped.
pub(super) struct Hold {
    in_hand: Arc<InHand>,
    id: u64,
    /// Fires when the task became stale or the worker must leave.
    pub cancel: CancellationToken,
}

impl InHand {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Nothing in here can be left half done by a panic.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a delivered task in hand: it is kept alive from now on.
    #[must_use]
    pub(super) fn hold(self: &Arc<Self>, lease: Arc<dyn Lease>) -> Hold {
        let cancel = CancellationToken::new();
        let mut entries = self.entries();
        if entries.leaving {
            cancel.cancel();
        }
        let id = entries.next;
        entries.next += 1;
        entries.by_id.insert(id, Entry { lease, work: None, cancel: cancel.clone() });
        Hold { in_hand: self.clone(), id, cancel }
    }

    /// Takes note of how long a pool's leases are: signs of life go out often enough for the shortest known.
    pub(super) fn leases_last(&self, ack_wait: Duration) {
        let pace = ack_wait / HEARTBEATS;
        self.pace.send_if_modified(|known| {
            let slower = known.is_none_or(|known| known > pace);
            if slower {
                *known = Some(pace);
            }
            slower
        });
    }

    /// Between two signs of life; `None` until a pool's leases are known.
    #[must_use]
    pub(super) fn pace(&self) -> watch::Receiver<Option<Duration>> {
        self.pace.subscribe()
    }

    /// The leases of all tasks in hand.
    #[must_use]
    pub(super) fn leases(&self) -> Vec<Arc<dyn Lease>> {
        self.entries().by_id.values().map(|entry| entry.lease.clone()).collect()
    }

    /// Cancels what became stale.
    pub(super) fn cancel_stale(&self, policies: &PolicyTable) {
        for entry in self.entries().by_id.values() {
            let stale = |work: &Work| policies.is_stale(&work.run, work.key, work.version, work.evaluate);
            if entry.work.as_ref().is_some_and(stale) {
                entry.cancel.cancel();
            }
        }
    }

    /// Cancels everything, now and from now on.
    pub(super) fn cancel_all(&self) {
        let mut entries = self.entries();
        entries.leaving = true;
        entries.by_id.values().for_each(|entry| entry.cancel.cancel());
    }
}

impl Hold {
    /// Says what the task is, so that it can be cancelled when it becomes stale. Staleness must be checked
    /// after this, lest a policy that came in between be missed.
    pub(super) fn describe(&self, task: &Task) {
        let work =
            Work { run: task.run.clone(), key: task.key, version: task.version, evaluate: task.evaluate };
        if let Some(entry) = self.in_hand.entries().by_id.get_mut(&self.id) {
            entry.work = Some(work);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.in_hand.entries().by_id.remove(&self.id);
    }
}
