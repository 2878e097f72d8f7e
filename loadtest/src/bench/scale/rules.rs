//! How many workers there are.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::ground::Ground;
use super::machines::Machines;

/// How many workers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(super) enum Rule {
    /// So many from the start to the end, whatever happens.
    Static,
    /// As many as waiting tasks ask for, with KEDA's defaults.
    QueueLag,
    /// The same with a threshold that fits these workers, and looks as frequent as the staleness budget's.
    QueueLagTuned,
    /// The staleness budget.
    Budget,
}

impl Rule {
    pub(super) const ALL: [Self; 4] = [Self::Static, Self::QueueLag, Self::QueueLagTuned, Self::Budget];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::QueueLag => "by the queue's length (KEDA's rule)",
            Self::QueueLagTuned => "the same, tuned to these workers",
            Self::Budget => "by the staleness budget",
        }
    }

    /// Applies the rule until the handle is aborted.
    pub(super) fn apply(self, ground: &Arc<dyn Ground>, pools: &[Arc<Machines>]) -> JoinHandle<()> {
        match self {
            Self::Static => {
                pools.iter().for_each(|pool| pool.has(pool.shape.most));
                tokio::spawn(std::future::ready(()))
            }
            Self::QueueLag => tokio::spawn(queue_lag(ground.clone(), pools.to_vec(), &DEFAULTS)),
            Self::QueueLagTuned => tokio::spawn(queue_lag(ground.clone(), pools.to_vec(), &TUNED)),
            Self::Budget => ground.follow(pools.to_vec()),
        }
    }
}

/// KEDA's rule for JetStream: at each look, one worker for so many messages that are queued or in flight; fewer only
/// after a while in which fewer were enough.
struct QueueLag {
    poll: Duration,
    /// Messages of a worker; `None` for as many as it has slots.
    threshold: Option<u32>,
    /// Looks before the fleet shrinks.
    stabilisation: usize,
}

/// 30 s, 10 messages and 300 s.
const DEFAULTS: QueueLag = QueueLag { poll: Duration::from_secs(30), threshold: Some(10), stabilisation: 10 };
/// Looks as often as the staleness budget, and has as many messages of a worker as it has slots. It shrinks after KEDA's own
/// 300 s: after 15 s, as the budget does here, it ends workers whose tasks it counts again a moment later.
const TUNED: QueueLag = QueueLag { poll: Duration::from_secs(5), threshold: None, stabilisation: 60 };

async fn queue_lag(ground: Arc<dyn Ground>, pools: Vec<Arc<Machines>>, rule: &'static QueueLag) {
    let mut recent: Vec<Vec<u32>> = vec![Vec::new(); pools.len()];
    loop {
        let tasks = ground.progress().await.unwrap_or_default().tasks;
        for (pool, recent) in pools.iter().zip(&mut recent) {
            let lag: u64 = pool.shape.stages.iter().filter_map(|stage| tasks.get(stage)).sum();
            let threshold = u64::from(rule.threshold.unwrap_or(pool.shape.slots));
            recent.push((lag.div_ceil(threshold) as u32).min(pool.shape.most));
            let from = recent.len().saturating_sub(rule.stabilisation);
            pool.has(recent[from..].iter().copied().max().unwrap_or(0));
        }
        sleep(ground.pace().of_fleet(rule.poll)).await;
    }
}
