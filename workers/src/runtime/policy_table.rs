//! The current policy of every run, kept up to date by a watch. It is read for each task, so a read
//! must be cheap.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millrace_queue::Broker;
use millrace_schemas::limits::MAX_PARTITIONS;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, RunId, TaskKey};
use tokio::sync::watch;

/// Between a watch that broke and the next.
const REWATCH: Duration = Duration::from_millis(500);

/// A view of all runs' policies. Clones share it.
#[derive(Debug, Clone)]
pub struct PolicyTable {
    table: watch::Receiver<Arc<HashMap<RunId, Policy>>>,
    partitions: watch::Receiver<u32>,
}

/// Writes the tables that [`policies`] returned with it.
pub struct PolicyWatch {
    broker: Broker,
    table: watch::Sender<Arc<HashMap<RunId, Policy>>>,
    partitions: watch::Sender<u32>,
}

/// An empty table, and the watch that fills it once [`PolicyWatch::run`] is polled.
#[must_use]
pub fn policies(broker: Broker) -> (PolicyTable, PolicyWatch) {
    let (table_sender, table) = watch::channel(Arc::default());
    let (partitions_sender, partitions) = watch::channel(1);
    let watch = PolicyWatch { broker, table: table_sender, partitions: partitions_sender };
    (PolicyTable { table, partitions }, watch)
}

impl PolicyTable {
    /// The policy of a run; `None` until the watch delivered one.
    #[must_use]
    pub fn get(&self, run: &RunId) -> Option<Policy> {
        self.table.borrow().get(run).cloned()
    }

    /// Whether the watch delivered a policy of the run.
    #[must_use]
    pub fn knows(&self, run: &RunId) -> bool {
        self.table.borrow().contains_key(run)
    }

    /// Whether the run no longer needs a task of this start version. `false` while the run is
    /// unknown.
    #[must_use]
    pub fn is_stale(&self, run: &RunId, key: TaskKey, version: PolicyVersion, evaluate: bool) -> bool {
        self.table.borrow().get(run).is_some_and(|policy| policy.is_stale(key, version, evaluate))
    }

    /// Partitions of the generate pool: the largest number of any run that has not ended, at least
    /// 1.
    #[must_use]
    pub fn partitions(&self) -> u32 {
        *self.partitions.borrow()
    }

    /// Waits until [`Self::partitions`] changes; `false` once the watch is gone.
    pub async fn partitions_changed(&mut self) -> bool {
        self.partitions.changed().await.is_ok()
    }

    /// Waits for the next change of any run's policy; `false` once the watch is gone.
    pub async fn changed(&mut self) -> bool {
        self.table.changed().await.is_ok()
    }
}

impl PolicyWatch {
    /// Consumes the policy keys, produces the table. Waits for the next change. When the queue
    /// cannot be reached, it starts the watch again. Never ends.
    pub async fn run(self) {
        loop {
            if let Err(error) = self.follow().await {
                tracing::warn!(%error, "watch of policies broke");
            }
            tokio::time::sleep(REWATCH).await;
        }
    }

    async fn follow(&self) -> Result<(), millrace_queue::BrokerError> {
        let mut watch = self.broker.watch_policies().await?;
        loop {
            let (run, policy) = watch.next().await?;
            tracing::debug!(%run, version = %policy.version, floor = %policy.floor, "policy");
            self.table.send_modify(|table| {
                Arc::make_mut(table).insert(run, policy);
            });
            let most = most_partitions(&self.table.borrow());
            self.partitions.send_if_modified(|partitions| std::mem::replace(partitions, most) != most);
        }
    }
}

fn most_partitions(table: &HashMap<RunId, Policy>) -> u32 {
    let live = table.values().filter(|policy| !policy.ended);
    live.map(|policy| policy.partitions).max().unwrap_or(1).clamp(1, MAX_PARTITIONS)
}
