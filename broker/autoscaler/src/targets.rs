//! What makes a decision true. A target is told the standing decision again and again, until the
//! world agrees: a call that was lost, refused or cut is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_coordinator::shell::leader::Term;
use millrace_queue::Broker;
use millrace_schemas::WorkerId;
use tokio::sync::watch;

use crate::leave::LiveMachine;
use crate::spec::{ScalingFile, TargetSpec};

mod aws;
mod drain;
mod kubernetes;

/// A target has this long for one round; then it counts as failed.
const ROUND: Duration = Duration::from_secs(60);
/// Between two rounds with the same order.
const AGAIN: Duration = Duration::from_secs(3);
/// Between two rounds after failures, at most.
const LONGEST: Duration = Duration::from_secs(60);

/// By then a worker of a pod that was asked to leave is not ready: the chart probes its pools every 2 s.
/// Kubernetes, which ends first what is not ready, may be told the lower number.
pub const UNREADY: Duration = Duration::from_secs(8);

/// The standing decision about a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Order {
    /// Workers that it is to have; `None` while this process decides nothing.
    pub desired: Option<u32>,
    /// Live workers beyond that, in the order in which they should go.
    pub leave: Vec<WorkerId>,
    /// Workers that stand by and are to serve again: the pool has too few.
    pub recall: Vec<WorkerId>,
    /// What a target that ends machines has to know.
    pub machines: Machines,
}

/// The machines of a pool's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Machines {
    /// Those on which a worker of the pool lives, in the order in which they should go.
    pub live: Vec<LiveMachine>,
    /// Those on which any worker lives, of whatever pool.
    pub occupied: BTreeSet<String>,
    /// Each live worker of the pool tells its machine. Else one without a worker is not known from others.
    pub all_known: bool,
    /// Time from a decision until a new worker serves, its spread included.
    pub start_up: Duration,
}

/// Why a target did not follow an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub String);

/// Starts and ends the workers of one pool.
#[async_trait]
pub trait Target: Send + Sync + 'static {
    /// Takes the world one step nearer to the order. Repeating it is harmless.
    async fn follow(&self, desired: u32, order: &Order) -> Result<(), TargetError>;

    /// This process decides nothing now: another leader may do other things with the pool.
    fn forget(&self) {}

    /// Machines without a worker that it replaced since the last call.
    fn replaced(&self) -> Vec<WorkerId> {
        Vec::new()
    }
}

/// The targets of a file, by pool.
///
/// # Errors
/// A target cannot be set up here; the text names the remedy.
pub async fn of(
    file: &ScalingFile,
    broker: &Broker,
) -> Result<BTreeMap<String, Arc<dyn Target>>, TargetError> {
    let mut targets: BTreeMap<String, Arc<dyn Target>> = BTreeMap::new();
    for pool in &file.pools {
        let target: Arc<dyn Target> = match &pool.target {
            TargetSpec::Local | TargetSpec::Keda => Arc::new(drain::Drain::new(broker.clone())),
            TargetSpec::Aws { group } => {
                Arc::new(aws::Aws::connect(group.clone(), pool.workers_per_machine).await)
            }
            TargetSpec::Kubernetes { namespace, resource, name } => {
                Arc::new(kubernetes::Kubernetes::in_cluster(broker.clone(), namespace, resource, name)?)
            }
        };
        targets.insert(pool.name.clone(), target);
    }
    Ok(targets)
}

/// Consumes the orders of one pool, produces calls of its target while the term holds. Waits for an order, or
/// for the next round. On failure: tries again, more and more rarely. Ends with the orders.
pub(crate) async fn converge(
    pool: String,
    target: Arc<dyn Target>,
    term: Term,
    mut orders: watch::Receiver<Order>,
) {
    let mut pause = AGAIN;
    loop {
        let order = orders.borrow_and_update().clone();
        // The order of a leader that was suspended stays until its next decision; the pool is another's then.
        if let Some(desired) = order.desired.filter(|_| term.holds()) {
            let failure = match tokio::time::timeout(ROUND, target.follow(desired, &order)).await {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer within {} s", ROUND.as_secs())),
            };
            metrics::gauge!("millrace_scale_target_failing", "pool" => pool.clone())
                .set(if failure.is_some() { 1.0 } else { 0.0 });
            pause = match &failure {
                Some(reason) => {
                    tracing::warn!(pool, desired, reason, "the pool cannot be scaled yet; trying again");
                    LONGEST.min(pause * 2)
                }
                None => AGAIN,
            };
        } else {
            target.forget();
        }
        match tokio::time::timeout(pause, orders.changed()).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(_)) => return,
        }
        if pause > AGAIN {
            // A target that fails is not asked again sooner because its order changes.
            tokio::time::sleep(AGAIN).await;
        }
    }
}

#[cfg(test)]
mod tests;
