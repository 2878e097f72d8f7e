//! The current policy of every run, kept up by a watch: asked for each task, so it must cost nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millrace_queue::Broker;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, RunId, TaskKey};
use tokio::sync::watch;

/// Between a watch that broke and the next.
const REWATCH: Duration = Duration::from_millis(500);

/// A view of all runs' policies. Clones share it.
#[derive(Debug, Clone)]
pub struct PolicyTable {
    table: watch::Receiver<Arc<HashMap<RunId, Policy>>>,
}

/// Keeps the tables that it gave up to date.
pub struct PolicyWatch {
    broker: Broker,
    table: watch::Sender<Arc<HashMap<RunId, Policy>>>,
}

/// A table and what keeps it up to date, once it is run.
#[must_use]
pub fn policies(broker: Broker) -> (PolicyTable, PolicyWatch) {
    let (sender, table) = watch::channel(Arc::default());
    (PolicyTable { table }, PolicyWatch { broker, table: sender })
}

impl PolicyTable {
    /// The policy of a run, as far as this process has heard.
    #[must_use]
    pub fn get(&self, run: &RunId) -> Option<Policy> {
        self.table.borrow().get(run).cloned()
    }

    /// Whether this process has heard of the run.
    #[must_use]
    pub fn knows(&self, run: &RunId) -> bool {
        self.table.borrow().contains_key(run)
    }

    /// Whether a task of this start version is of no use any more. Not so while nothing is known of the run.
    #[must_use]
    pub fn is_stale(&self, run: &RunId, key: TaskKey, version: PolicyVersion, evaluate: bool) -> bool {
        self.table.borrow().get(run).is_some_and(|policy| policy.is_stale(key, version, evaluate))
    }

    /// Waits for the next change of any run's policy; `false` when there will be none.
    pub async fn changed(&mut self) -> bool {
        self.table.changed().await.is_ok()
    }
}

impl PolicyWatch {
    /// Consumes the policy keys, produces the table. Waits for the next change; when the queue cannot be
    /// reached it watches anew. Ends never.
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
        }
    }
}
