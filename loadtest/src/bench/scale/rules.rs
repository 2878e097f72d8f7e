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
    /// As many as waiting tasks ask for.
    QueueLag,
    /// The staleness budget.
    Budget,
}

impl Rule {
    pub(super) const ALL: [Self; 3] = [Self::Static, Self::QueueLag, Self::Budget];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::QueueLag => "by the queue's length (KEDA's rule)",
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
            Self::QueueLag => tokio::spawn(queue_lag(ground.clone(), pools.to_vec())),
            Self::Budget => ground.follow(pools.to_vec()),
        }
    }
}

/// KEDA's rule for JetStream with its defaults: every 30 s, one worker for each 10 messages that are
/// queued or in flight; fewer only after 300 s in which fewer were enough.
async fn queue_lag(ground: Arc<dyn Ground>, pools: Vec<Arc<Machines>>) {
    const POLL: Duration = Duration::from_secs(30);
    const THRESHOLD: u64 = 10;
    const STABILISATION: usize = 10;
    let mut recent: Vec<Vec<u32>> = vec![Vec::new(); pools.len()];
    loop {
        let tasks = ground.progress().await.unwrap_or_default().tasks;
        for (pool, recent) in pools.iter().zip(&mut recent) {
            let lag: u64 = pool.shape.stages.iter().filter_map(|stage| tasks.get(stage)).sum();
            recent.push((lag.div_ceil(THRESHOLD) as u32).min(pool.shape.most));
            let from = recent.len().saturating_sub(STABILISATION);
            pool.has(recent[from..].iter().copied().max().unwrap_or(0));
        }
        sleep(ground.pace().of_fleet(POLL)).await;
    }
}
