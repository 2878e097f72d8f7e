//! One worker process: the shared parts, and a loop for each stage and pool.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use millrace_queue::Broker;
use millrace_schemas::{PoolName, Stage, WorkerId, limits, subjects};
use millrace_telemetry::Health;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::counters::{Reporter, Stages};
use super::executor::Executor;
use super::in_flight::InHand;
use super::policy_table::{PolicyTable, policies};
use super::run_loop::PoolLoop;
use super::{drain, heartbeat, membership};

/// How a worker behaves.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Its name.
    pub id: WorkerId,
    /// This process: another one of the same name has another word here. Default: a new one.
    pub instance: String,
    /// Time to finish what is in hand when told to leave. Default 20 s.
    pub grace: Duration,
    /// Between two signs of life at most; more often where leases are short. Default [`limits::HEARTBEAT_MS`].
    pub heartbeat: Duration,
    /// Between two reports of the counters. Default [`limits::WORKER_REPORT_MS`].
    pub report: Duration,
}

impl WorkerSettings {
    /// The defaults, for a worker of this name.
    #[must_use]
    pub fn new(id: WorkerId) -> Self {
        Self {
            id,
            instance: uuid::Uuid::now_v7().simple().to_string(),
            grace: Duration::from_secs(20),
            heartbeat: Duration::from_millis(limits::HEARTBEAT_MS),
            report: Duration::from_millis(limits::WORKER_REPORT_MS),
        }
    }
}

/// A stage's pool to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// The stage.
    pub stage: Stage,
    /// The pool.
    pub pool: PoolName,
    /// Tasks in hand at most.
    pub concurrency: u32,
}

/// A worker before it serves. Its background tasks end when it is dropped.
pub struct Worker {
    settings: WorkerSettings,
    broker: Broker,
    policies: PolicyTable,
    in_hand: Arc<InHand>,
    background: Vec<JoinHandle<()>>,
}

impl Worker {
    /// Begins to watch policies and to keep alive what is in hand.
    #[must_use]
    pub fn start(broker: Broker, settings: WorkerSettings) -> Self {
        let (table, watch) = policies(broker.clone());
        let in_hand = Arc::new(InHand::default());
        let background = vec![
            tokio::spawn(watch.run()),
            tokio::spawn(heartbeat::run(in_hand.clone(), settings.heartbeat)),
            tokio::spawn(cancel_stale(in_hand.clone(), table.clone())),
        ];
        Self { settings, broker, policies: table, in_hand, background }
    }

    /// The policies as this process knows them.
    #[must_use]
    pub const fn policies(&self) -> &PolicyTable {
        &self.policies
    }

    /// Serves `pools` until `stop` fires, then drains. Says whether all that was in hand is settled; what is
    /// not comes to another worker when its lease ends.
    pub async fn serve(
        self,
        mut pools: Vec<PoolSettings>,
        executor: impl Fn(Stage) -> Arc<dyn Executor>,
        health: Health,
        stop: CancellationToken,
    ) -> bool {
        self.add_member_pool(&mut pools);
        let mut stages = Stages::new();
        for PoolSettings { stage, .. } in &pools {
            stages.entry(*stage).or_insert_with(|| (Arc::default(), executor(*stage)));
        }
        self.serve_stages(pools, stages, health, stop).await
    }

    /// What [`Self::serve`] does once the stages have their executors. Boxed, so that it is compiled once.
    fn serve_stages(
        mut self,
        pools: Vec<PoolSettings>,
        stages: Stages,
        health: Health,
        stop: CancellationToken,
    ) -> BoxFuture<'static, bool> {
        Box::pin(async move {
            health.set_stages(stages.keys().map(ToString::to_string));
            let reporter = Reporter {
                worker: self.settings.id.clone(),
                broker: self.broker.clone(),
                health,
                stages: stages.clone(),
            };
            self.background.push(tokio::spawn(reporter.run(self.settings.report)));
            let mut loops = JoinSet::new();
            for PoolSettings { stage, pool, concurrency } in pools {
                let (counters, executor) = stages[&stage].clone();
                let pool_loop = PoolLoop {
                    stage,
                    pool,
                    concurrency,
                    executor,
                    worker: self.settings.id.clone(),
                    broker: self.broker.clone(),
                    policies: self.policies.clone(),
                    in_hand: self.in_hand.clone(),
                    counters,
                };
                loops.spawn(Arc::new(pool_loop).run(stop.clone()));
            }
            let loops = async move {
                while let Some(ended) = loops.join_next().await {
                    ended.expect("a loop stops panics at the task's boundary");
                }
            };
            let membership = stages.get(&Stage::TrainShard).map(|(_, trainer)| self.join(trainer.clone()));
            let settled = drain::drain(&stop, self.settings.grace, &self.in_hand, loops).await;
            if let Some((leave, mut left)) = membership {
                leave.cancel();
                let _ = left.join_next().await;
            }
            settled
        })
    }

    /// One that trains also does what is meant for it alone: its shares in gangs.
    fn add_member_pool(&self, pools: &mut Vec<PoolSettings>) {
        if pools.iter().any(|settings| settings.stage == Stage::TrainShard) {
            let pool = subjects::member_pool(&self.settings.id);
            pools.push(PoolSettings { stage: Stage::TrainShard, pool, concurrency: 1 });
        }
    }

    /// Gives signs of life until the token fires; the one task ends with the last sign, or with the set.
    fn join(&self, trainer: Arc<dyn Executor>) -> (CancellationToken, JoinSet<()>) {
        let leave = CancellationToken::new();
        let WorkerSettings { id, instance, .. } = self.settings.clone();
        let signs = membership::give_signs(self.broker.clone(), id, instance, trainer, leave.clone());
        let mut left = JoinSet::new();
        left.spawn(signs);
        (leave, left)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.background.iter().for_each(JoinHandle::abort);
    }
}

/// Consumes policies, produces cancellations of what became stale. Waits for the next change. Ends with the
/// watch.
async fn cancel_stale(in_hand: Arc<InHand>, mut policies: PolicyTable) {
    while policies.changed().await {
        in_hand.cancel_stale(&policies);
    }
}
