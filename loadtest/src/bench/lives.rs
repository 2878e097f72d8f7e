//! Whole lives: the production coordinator and the production run loop, on a real server, with
//! executors that do nothing. A life is put, pull, execute nothing, outcome to the log, ack, decide
//! the next, put.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use millrace_coordinator::shell::driver::{self, DriverConfig};
use millrace_queue::Broker;
use millrace_schemas::blob::Sha;
use millrace_schemas::env_step::{EnvAction, EnvStepDone};
use millrace_schemas::generate::{Finish, GenerateDone, Segment};
use millrace_schemas::publish_weights::PublishWeightsDone;
use millrace_schemas::reward::RewardDone;
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::TrainShardDone;
use millrace_schemas::{Event, OutcomeBody, PoolName, RolloutId, Stage, Task, TaskBody};
use millrace_telemetry::Health;
use millrace_workers::{Cost, Executor, PoolSettings, Verdict, Worker, WorkerSettings};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The pool of the environment's tasks in a run of [`submit`].
pub(super) const ENV_POOL: &str = "counter";

/// What was measured.
#[derive(Debug, Clone, Copy)]
pub struct Lives {
    /// Lives a second.
    pub per_s: f64,
    /// Median time from the end of a task to the start of its rollout's next, in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the same.
    pub p99_us: f64,
    /// Rollouts that were scored, a second.
    pub rollouts_per_s: f64,
}

/// What is played. In flight are `groups * size * (1 + alpha)` rollouts.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Groups of a step.
    pub groups: u32,
    /// Rollouts of a group.
    pub size: u32,
    /// Steps by which a rollout may be stale.
    pub alpha: u32,
    /// Turns of a rollout.
    pub turns: u8,
}

impl Load {
    /// Rollouts of `turns` turns, `in_flight` at once, synchronous. In groups of eight, where there
    /// are so many.
    #[must_use]
    pub fn of(in_flight: u32, turns: u8) -> Self {
        let size = in_flight.clamp(1, 8);
        Self { groups: (in_flight / size).max(1), size, alpha: 0, turns }
    }

    const fn in_flight(&self) -> u32 {
        self.groups * self.size * (1 + self.alpha)
    }
}

/// The coordinator and the worker have a connection each, as in production.
pub struct Brokers {
    /// The coordinator's.
    pub coordinator: Broker,
    /// The worker's.
    pub worker: Broker,
}

/// Plays rollouts for `time`.
///
/// # Errors
/// The queue fails, or the run does not start.
pub async fn run(brokers: &Brokers, name: &str, load: Load, time: Duration) -> anyhow::Result<Lives> {
    let broker = &brokers.coordinator;
    let stop = CancellationToken::new();
    let executor = Arc::new(Nothing { turns: load.turns, ..Nothing::default() });
    let coordinator = tokio::spawn(coordinate(broker.clone(), name.to_owned(), stop.clone()));
    let worker = tokio::spawn(work(
        brokers.worker.clone(),
        ENV_POOL,
        executor.clone(),
        load.in_flight(),
        stop.clone(),
    ));
    submit(broker, name, load, 1).await?;
    executor.wait_for_first(Duration::from_secs(30)).await?;
    tokio::time::sleep(time / 5).await;
    executor.forget();
    let done = || [&executor.done, &executor.scored].map(|count| count.load(Ordering::Relaxed));
    let (from, since) = (done(), Instant::now());
    tokio::time::sleep(time).await;
    let (to, took) = (done(), since.elapsed().as_secs_f64());
    let [per_s, rollouts_per_s] = [0, 1].map(|of| (to[of] - from[of]) as f64 / took);
    let (p50_us, p99_us) = executor.latency();
    end(broker, name, &stop, [worker, coordinator]).await?;
    Ok(Lives { per_s, p50_us, p99_us, rollouts_per_s })
}

/// Ends a run that was measured, and then what played it.
pub(super) async fn end(
    broker: &Broker,
    name: &str,
    stop: &CancellationToken,
    players: [JoinHandle<anyhow::Result<()>>; 2],
) -> anyhow::Result<()> {
    broker.append(name, &Event::Cancelled { reason: "measured".into() }).await?;
    // The cancellation is decided before the coordinator goes.
    tokio::time::sleep(Duration::from_millis(300)).await;
    stop.cancel();
    for player in players {
        player.await??;
    }
    Ok(())
}

/// A coordinator, alone at its log.
pub(super) async fn coordinate(broker: Broker, id: String, stop: CancellationToken) -> anyhow::Result<()> {
    let shared = driver::restore(&broker).await?;
    // One snapshot at the end, so that each run starts where the one before ended.
    driver::run(broker, DriverConfig::new(&id), shared, Health::default(), stop).await
}

/// A worker of every stage, with environments of `env_pool`, whose `executor` does `concurrency` tasks of each at once.
pub(super) async fn work(
    broker: Broker,
    env_pool: &str,
    executor: Arc<dyn Executor>,
    concurrency: u32,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let pools = [
        (Stage::Generate, "policy"),
        (Stage::EnvStep, env_pool),
        (Stage::Reward, "success"),
        (Stage::TrainShard, "gang"),
        (Stage::PublishWeights, "commit"),
    ];
    let pools = pools.map(|(stage, pool)| {
        let pool: PoolName = pool.parse().expect("a pool's name");
        PoolSettings { stage, pool, concurrency }
    });
    let worker = Worker::start(broker, WorkerSettings::new("bench".parse()?));
    worker.serve(pools.into(), move |_| executor.clone(), Health::default(), stop).await;
    Ok(())
}

/// Submits a run without an end, whose turns sample up to `max_new_tokens`.
pub(super) async fn submit(
    broker: &Broker,
    name: &str,
    load: Load,
    max_new_tokens: u32,
) -> anyhow::Result<()> {
    let Load { groups, size, alpha, turns } = load;
    let spec = from_toml(&format!(
        r#"
        name = "{name}"
        steps = 1000000
        model = {{ kind = "scripted" }}
        environment = {{ name = "counter", turns = {turns} }}
        rewards = [{{ rule = "success" }}]
        evaluate = {{ prompts = 0 }}
        rollout = {{ groups_per_step = {groups}, group_size = {size}, alpha = {alpha}, max_new_tokens = {max_new_tokens} }}
        "#
    ))?;
    broker.append(name, &Event::Submitted(Box::new(spec))).await?;
    Ok(())
}

/// Does nothing, at once, and notes when.
#[derive(Default)]
struct Nothing {
    turns: u8,
    done: AtomicU64,
    scored: AtomicU64,
    ended: Mutex<HashMap<RolloutId, Instant>>,
    between: Mutex<Vec<u32>>,
}

impl Nothing {
    async fn wait_for_first(&self, most: Duration) -> anyhow::Result<()> {
        let since = Instant::now();
        while self.done.load(Ordering::Relaxed) < 10 {
            anyhow::ensure!(since.elapsed() < most, "no task was done in {most:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    fn forget(&self) {
        self.between.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Median and 99th percentile, in microseconds.
    fn latency(&self) -> (f64, f64) {
        let mut between = self.between.lock().unwrap_or_else(PoisonError::into_inner);
        between.sort_unstable();
        let at = |share: f64| between.get((between.len() as f64 * share) as usize).copied().unwrap_or(0);
        (f64::from(at(0.5)), f64::from(at(0.99)))
    }

    fn note(&self, rollout: RolloutId) {
        let now = Instant::now();
        let before = self.ended.lock().unwrap_or_else(PoisonError::into_inner).insert(rollout, now);
        if let Some(before) = before {
            let us = u32::try_from((now - before).as_micros()).unwrap_or(u32::MAX);
            self.between.lock().unwrap_or_else(PoisonError::into_inner).push(us);
        }
    }
}

#[async_trait]
impl Executor for Nothing {
    async fn execute(&self, task: Task, _: CancellationToken) -> Verdict {
        if let Some(rollout) = task.key.rollout() {
            self.note(rollout);
        }
        self.done.fetch_add(1, Ordering::Relaxed);
        if matches!(task.body, TaskBody::Reward(_)) {
            self.scored.fetch_add(1, Ordering::Relaxed);
        }
        Verdict::Done(outcome(task.body, self.turns), Cost::default())
    }
}

/// The least that is an outcome of a task. A rollout has `turns` turns.
pub(crate) fn outcome(task: TaskBody, turns: u8) -> OutcomeBody {
    match task {
        TaskBody::Generate(generate) => OutcomeBody::Generate(GenerateDone {
            tokens: vec![1],
            logprobs: vec![-0.5],
            uncut_logprobs: Vec::new(),
            segments: vec![Segment { version: generate.min_version, tokens: 1 }],
            finish: Finish::Length,
            prefill_tokens: 0,
            cached_tokens: 0,
        }),
        TaskBody::EnvStep(step) => {
            let turn = match step.action {
                EnvAction::Reset => 0,
                EnvAction::Step { state, .. } => state.first().map_or(1, |turn| turn + 1),
            };
            OutcomeBody::EnvStep(EnvStepDone {
                state: vec![turn],
                observation: vec![1],
                reward: 0.0,
                done: turn >= turns,
                success: false,
                valid: true,
                ..EnvStepDone::default()
            })
        }
        TaskBody::Reward(_) => OutcomeBody::Reward(RewardDone::default()),
        TaskBody::TrainShard(_) => {
            OutcomeBody::TrainShard(TrainShardDone { files: Vec::new(), metrics: BTreeMap::new() })
        }
        TaskBody::PublishWeights(publish) => OutcomeBody::PublishWeights(PublishWeightsDone {
            manifest: Sha::of(&publish.manifest.to_json()),
            batch: publish.manifest.batch,
            created: true,
            bytes: 0,
            collected: Vec::new(),
        }),
    }
}
