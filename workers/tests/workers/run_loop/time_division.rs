//! A worker that generates and trains in turn on one device, and another that only generates.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_schemas::subjects::{GENERATE_POOL, TRAIN_POOL};
use millrace_schemas::submit::ModelSpec;
use millrace_schemas::train_shard::{TrainShardDone, TrainShardTask, TrainWork};
use millrace_schemas::{OutcomeBody, PolicyVersion, Stage, Task, TaskBody, TaskKey};
use millrace_workers::runtime::{Tenant, TimeDivision};
use millrace_workers::{Cost, Executor, Failure, PoolSettings, Retry, Verdict};
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::run_loop::partitions::turn_of;
use crate::run_loop::support::{Bench, Running, begun_turn, eventually, on_both_queues, run, soon};

on_both_queues!(
    a_step_hands_turns_back_to_others_and_generating_continues_after_it,
    a_step_that_fails_lets_generating_continue,
    a_device_that_is_not_released_fails_the_step_and_keeps_its_turns_from_nobody,
);

const GRACE: Duration = Duration::from_secs(5);

/// Samples without end until asked to hand back; then returns two tokens.
struct Endless {
    device: TimeDivision,
    begun: Semaphore,
}

#[async_trait]
impl Executor for Endless {
    async fn execute(&self, _: Task, _: CancellationToken) -> Verdict {
        let turn = self.device.begin_turn();
        self.begun.add_permits(1);
        turn.hand_back().cancelled().await;
        begun_turn()
    }

    fn hand_back(&self) -> bool {
        self.device.leave();
        true
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        Some(self.device.may_generate())
    }
}

/// Makes steps that last until they are let go.
struct Steps {
    device: TimeDivision,
    begun: Notify,
    lets_go: Notify,
    fails: bool,
}

#[async_trait]
impl Executor for Steps {
    async fn execute(&self, _: Task, _: CancellationToken) -> Verdict {
        let restart = |why: String| Verdict::from(Failure::Retry(Retry::After(Duration::from_secs(60)), why));
        let _step = match self.device.begin_step().await {
            Ok(step) => step,
            Err(error) => {
                self.begun.notify_one();
                return restart(error.to_string());
            }
        };
        self.begun.notify_one();
        self.lets_go.notified().await;
        if self.fails {
            return restart("void".to_owned());
        }
        let done = TrainShardDone { files: Vec::new(), metrics: Default::default() };
        Verdict::Done(OutcomeBody::TrainShard(done), Cost::default())
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        Some(self.device.may_train())
    }
}

/// An engine that never releases the device.
struct Hung;

#[async_trait]
impl Tenant for Hung {
    async fn leave(&self) -> Result<(), String> {
        std::future::pending().await
    }

    fn come_back(&self) {}
}

/// A flexible worker and its executors.
struct Flexible {
    worker: Running,
    turns: Arc<Endless>,
    steps: Arc<Steps>,
}

impl Flexible {
    async fn start(bench: &Bench, fails: bool, engine: Option<Arc<dyn Tenant>>) -> Self {
        let device = TimeDivision::default();
        if let Some(engine) = engine {
            device.set_engine(engine);
        }
        let turns = Arc::new(Endless { device: device.clone(), begun: Semaphore::new(0) });
        let (begun, lets_go) = (Notify::new(), Notify::new());
        let steps = Arc::new(Steps { device, begun, lets_go, fails });
        let mut pools = Vec::new();
        for (stage, pool) in [(Stage::Generate, GENERATE_POOL), (Stage::TrainShard, TRAIN_POOL)] {
            let pool = pool.parse().unwrap();
            bench.broker.queue().ensure_pool(stage, &pool).await.unwrap();
            pools.push(PoolSettings { stage, pool, concurrency: 1 });
        }
        let (of_turns, of_steps) = (turns.clone(), steps.clone());
        let executor = move |stage| -> Arc<dyn Executor> {
            if stage == Stage::Generate { of_turns.clone() } else { of_steps.clone() }
        };
        let worker = bench.worker_serving("flexible", pools, GRACE, executor);
        Self { worker, turns, steps }
    }

    /// Waits until it samples a turn.
    async fn samples(&self) {
        let begun = tokio::time::timeout(Duration::from_secs(30), self.turns.begun.acquire()).await;
        begun.expect("a turn is begun").unwrap().forget();
    }
}

fn turn(group: u64) -> Task {
    Task { pool: GENERATE_POOL.parse().unwrap(), ..turn_of(group, 1, 1) }
}

fn step(makes: u64) -> Task {
    let work = TrainWork::Initialise { model: ModelSpec::Scripted, seed: 1 };
    Task {
        run: run(),
        key: TaskKey::TrainShard { makes, rank: 0, attempt: 0 },
        pool: TRAIN_POOL.parse().unwrap(),
        version: PolicyVersion(0),
        evaluate: false,
        body: TaskBody::TrainShard(TrainShardTask { rank: 0, world: 1, gang: 0, timeout_ms: 0, work }),
    }
}

/// Another worker that generates, and what tells that it has a turn.
fn another(bench: &Bench) -> (Running, Arc<Notify>) {
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let serves =
        PoolSettings { stage: Stage::Generate, pool: GENERATE_POOL.parse().unwrap(), concurrency: 4 };
    let worker = bench.worker_of("other", serves, GRACE, move |_, _| {
        told.notify_one();
        Box::pin(async { Verdict::Stale })
    });
    (worker, begun)
}

async fn a_step_hands_turns_back_to_others_and_generating_continues_after_it(bench: Bench) {
    let flexible = Flexible::start(&bench, false, None).await;
    bench.put(&turn(1)).await;
    flexible.samples().await;
    bench.put(&step(1)).await;
    soon("the step is begun", &flexible.steps.begun).await;
    let outcomes =
        eventually("the turn is handed back", async || Some(bench.outcomes().await).filter(|o| o.len() == 1))
            .await;
    let OutcomeBody::Returned(returned) = &outcomes[0].body else { panic!("{outcomes:?}") };
    assert_eq!(returned.sampled.as_ref().map(|part| part.tokens.as_slice()), Some(&[5, 6][..]));
    assert_eq!(outcomes[0].key, turn(1).key);

    // While it trains, another worker takes what there is to sample: this one pulls nothing.
    let (other, begun) = another(&bench);
    for group in 1..=3 {
        bench.put(&turn(group)).await;
        soon("another worker has the turn", &begun).await;
    }
    assert!(other.leave().await);
    assert_eq!(flexible.turns.begun.available_permits(), 0, "it samples while it trains");

    bench.put(&turn(4)).await;
    flexible.steps.lets_go.notify_one();
    flexible.samples().await;
    assert!(flexible.worker.leave().await);
    let steps = bench.outcomes().await.into_iter().filter(|outcome| outcome.key == step(1).key);
    assert_eq!(steps.count(), 1);
}

async fn a_step_that_fails_lets_generating_continue(bench: Bench) {
    let flexible = Flexible::start(&bench, true, None).await;
    bench.put(&step(1)).await;
    soon("the step is begun", &flexible.steps.begun).await;
    bench.put(&turn(1)).await;
    flexible.steps.lets_go.notify_one();
    flexible.samples().await;
    assert!(flexible.worker.leave().await);
}

async fn a_device_that_is_not_released_fails_the_step_and_keeps_its_turns_from_nobody(bench: Bench) {
    let flexible = Flexible::start(&bench, false, Some(Arc::new(Hung))).await;
    bench.put(&turn(1)).await;
    flexible.samples().await;
    bench.put(&step(1)).await;
    eventually("the turn is handed back", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    let (other, begun) = another(&bench);
    bench.put(&turn(2)).await;
    soon("another worker has the next turn", &begun).await;
    assert!(other.leave().await);
    assert!(flexible.worker.leave().await, "it can leave all the same");
}
