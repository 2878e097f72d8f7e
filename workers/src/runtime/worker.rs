//! A worker: the shared parts, and a loop for each stage and pool.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use millrace_queue::Broker;
use millrace_schemas::notice::Machine;
use millrace_schemas::{PoolName, Stage, WorkerId, limits, subjects};
use millrace_telemetry::{Health, Tracer};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::counters::{Reporter, Stages};
use super::drain::Departure;
use super::executor::Executor;
use super::in_flight::InFlight;
use super::policy_table::{PolicyTable, policies};
use super::run_loop::PoolLoop;
use super::time_division::TimeDivision;
use super::{drain, drain_requests, heartbeat, membership};

/// Settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// Unique among the workers that live at the same time.
    pub id: WorkerId,
    /// Tells this process from another one with the same id. Default: a new UUID.
    pub instance: String,
    /// Time to finish the tasks in flight when it must leave. Default 20 s.
    pub grace: Duration,
    /// Between two heartbeats at most; shorter where leases are short. Default
    /// [`limits::HEARTBEAT_MS`].
    pub heartbeat: Duration,
    /// The pool of workers that it belongs to, which its notices name.
    pub member_of: Option<String>,
    /// The machine that it is on, which its notices name.
    pub machine: watch::Receiver<Option<Machine>>,
    /// The device that its generate and train stages share; `None` where each has its own.
    pub time_division: Option<TimeDivision>,
    /// Between two reports of the counters. Default [`limits::WORKER_REPORT_MS`].
    pub report: Duration,
    /// Receives a span for each delivery. Default: off.
    pub tracer: Tracer,
}

impl WorkerSettings {
    /// The defaults.
    #[must_use]
    pub fn new(id: WorkerId) -> Self {
        Self {
            id,
            instance: uuid::Uuid::now_v7().simple().to_string(),
            grace: Duration::from_secs(20),
            heartbeat: Duration::from_millis(limits::HEARTBEAT_MS),
            report: Duration::from_millis(limits::WORKER_REPORT_MS),
            member_of: None,
            time_division: None,
            machine: watch::Sender::new(None).subscribe(),
            tracer: Tracer::default(),
        }
    }
}

/// A pool to serve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSettings {
    /// Its executor executes the tasks.
    pub stage: Stage,
    /// Unique within the stage.
    pub pool: PoolName,
    /// Tasks in flight at most.
    pub concurrency: u32,
}

/// A worker. Its background tasks end when it is dropped.
pub struct Worker {
    settings: WorkerSettings,
    broker: Broker,
    policies: PolicyTable,
    in_flight: Arc<InFlight>,
    background: Vec<JoinHandle<()>>,
}

impl Worker {
    /// Starts the watch of policies, the heartbeats and the cancellation of stale tasks.
    #[must_use]
    pub fn start(broker: Broker, settings: WorkerSettings) -> Self {
        let (table, watch) = policies(broker.clone());
        let in_flight = Arc::new(InFlight::default());
        let background = vec![
            tokio::spawn(watch.run()),
            tokio::spawn(heartbeat::run(in_flight.clone(), settings.heartbeat)),
            tokio::spawn(cancel_stale(in_flight.clone(), table.clone())),
        ];
        Self { settings, broker, policies: table, in_flight, background }
    }

    /// The table that the watch of this worker fills.
    #[must_use]
    pub const fn policies(&self) -> &PolicyTable {
        &self.policies
    }

    /// Serves `pools` until the departure is requested, then drains. Returns whether all tasks in flight were
    /// settled. The queue delivers the others to another worker when their leases end.
    pub async fn serve(
        self,
        mut pools: Vec<PoolSettings>,
        executor: impl Fn(Stage) -> Arc<dyn Executor>,
        health: Health,
        departure: impl Into<Departure>,
    ) -> bool {
        self.add_member_pool(&mut pools);
        let mut stages = Stages::new();
        for PoolSettings { stage, .. } in &pools {
            stages.entry(*stage).or_insert_with(|| (Arc::default(), executor(*stage)));
        }
        self.serve_stages(pools, stages, health, departure.into()).await
    }

    /// The part of [`Self::serve`] that is not generic. Boxed, so that it is compiled once.
    fn serve_stages(
        mut self,
        pools: Vec<PoolSettings>,
        stages: Stages,
        health: Health,
        departure: Departure,
    ) -> BoxFuture<'static, bool> {
        Box::pin(async move {
            health.set_stages(stages.keys().map(ToString::to_string));
            let reporter = Arc::new(Reporter {
                start: Instant::now(),
                worker: self.settings.id.clone(),
                broker: self.broker.clone(),
                health,
                stages: stages.clone(),
                slots: slots(&pools),
                machine: self.settings.machine.clone(),
                departure: departure.clone(),
                member_of: self.settings.member_of.clone(),
                time_division: self.settings.time_division.clone(),
            });
            self.background.push(tokio::spawn(reporter.clone().run(self.settings.report)));
            let (requested, health) = (departure.requested().clone(), reporter.health.clone());
            self.background.push(tokio::spawn(async move {
                requested.cancelled().await;
                health.set_leaving();
            }));
            let (broker, id) = (self.broker.clone(), self.settings.id.clone());
            self.background.push(tokio::spawn(drain_requests::follow(broker, id, departure.clone())));
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
                    in_flight: self.in_flight.clone(),
                    counters,
                    tracer: self.settings.tracer.clone(),
                };
                loops.spawn(Arc::new(pool_loop).run(departure.requested().clone()));
            }
            let executors: Vec<_> = stages.values().map(|(_, executor)| executor.clone()).collect();
            let loops = async move {
                while let Some(ended) = loops.join_next().await {
                    ended.expect("a loop stops panics at the task's boundary");
                }
                for executor in executors {
                    executor.linger().await;
                }
            };
            let membership =
                stages.get(&Stage::TrainShard).map(|(_, trainer)| self.send_heartbeats(trainer.clone()));
            let settled =
                drain::drain(&departure, self.settings.grace, (&self.in_flight, &stages), loops).await;
            if let Some((leave, mut heartbeats)) = membership {
                leave.cancel();
                let _ = heartbeats.join_next().await;
            }
            reporter.last().await;
            settled
        })
    }

    /// Adds the pool of a train worker's own tasks: its shares of gangs' steps.
    fn add_member_pool(&self, pools: &mut Vec<PoolSettings>) {
        if pools.iter().any(|settings| settings.stage == Stage::TrainShard) {
            let pool = subjects::member_pool(&self.settings.id);
            pools.push(PoolSettings { stage: Stage::TrainShard, pool, concurrency: 1 });
        }
    }

    /// Sends heartbeats as a member of gangs until the token fires. The set has the one async task
    /// that does, which ends after the last heartbeat, or with the set.
    fn send_heartbeats(&self, trainer: Arc<dyn Executor>) -> (CancellationToken, JoinSet<()>) {
        let leave = CancellationToken::new();
        let WorkerSettings { id, instance, .. } = self.settings.clone();
        let broker = self.broker.clone();
        let mut heartbeats = JoinSet::new();
        heartbeats.spawn(membership::send_heartbeats(broker, id, instance, trainer, leave.clone()));
        (leave, heartbeats)
    }
}

/// Tasks in flight at most, by stage: of its largest pool, for a run seldom uses several.
fn slots(pools: &[PoolSettings]) -> BTreeMap<Stage, u64> {
    let mut slots = BTreeMap::new();
    for PoolSettings { stage, concurrency, .. } in pools {
        let most: &mut u64 = slots.entry(*stage).or_default();
        *most = u64::from(*concurrency).max(*most);
    }
    slots
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.background.iter().for_each(JoinHandle::abort);
    }
}

/// Consumes policies, produces cancellations of the tasks that became stale. Waits for the next
/// change. Ends with the watch.
async fn cancel_stale(in_flight: Arc<InFlight>, mut policies: PolicyTable) {
    while policies.changed().await {
        in_flight.cancel_stale(&policies);
    }
}
