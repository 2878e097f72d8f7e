//! A run in virtual time on the real coordinator, queue in memory and run loop. What a machine
//! computes is a time that passes; the benchmarks that use this say how long.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use millrace_coordinator::shell::clock::UnixClock;
use millrace_coordinator::shell::driver::{self, DriverConfig};
use millrace_coordinator::shell::shared::SharedState;
use millrace_policy::random::Stream;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects, QueueSettings};
use millrace_schemas::api::RunState;
use millrace_schemas::submit::from_toml;
use millrace_schemas::{Event, RunId, Stage};
use millrace_telemetry::Health;
use millrace_workers::runtime::TimeDivision;
use millrace_workers::stages::default_pools;
use millrace_workers::{Executor, PolicyTable, PoolSettings, Worker, WorkerSettings};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Pools of the stages of a run of the counter. Others that nobody puts tasks into only cost time.
const POOLS: [&str; 5] = ["policy", "counter", "success", "gang", "commit"];

/// A coordinator at work, and the run that it was given.
pub(crate) struct VirtualRun {
    pub(crate) broker: Broker,
    pub(crate) shared: SharedState,
    pub(crate) config: DriverConfig,
    /// Ends the coordinator, and what else a benchmark ties to it.
    pub(crate) stop: CancellationToken,
    began: Instant,
    driven: JoinHandle<anyhow::Result<()>>,
}

impl VirtualRun {
    /// Starts the coordinator on an empty queue and store.
    pub(crate) async fn start(settings: QueueSettings) -> anyhow::Result<Self> {
        let began = Instant::now();
        let queue = Arc::new(MemoryQueue::with_settings(Arc::new(SystemClock::new()), settings));
        let broker = Broker::new(queue, Objects::memory());
        let clock = UnixClock::new(move || 1_700_000_000_000 + began.elapsed().as_millis() as u64);
        let config = DriverConfig::on("coordinator-0", clock);
        let shared = driver::restore(&broker).await?;
        let stop = CancellationToken::new();
        let driven =
            driver::run(broker.clone(), config.clone(), shared.clone(), Health::default(), stop.clone());
        Ok(Self { broker, shared, config, stop, began, driven: tokio::spawn(driven) })
    }

    /// Submits the run file `text`, waits until its run has finished, and calls `look` every now and
    /// then until it has. Returns the time since the start.
    ///
    /// # Errors
    /// The file is refused, the run fails or is paused, or it takes longer than `longest`.
    pub(crate) async fn play(
        &self,
        text: &str,
        longest: Duration,
        every: Duration,
        mut look: impl FnMut(),
    ) -> anyhow::Result<(RunId, Duration)> {
        let id = self.submit(text).await?;
        while !self.is_over(&id)? {
            if self.began.elapsed() > longest {
                bail!("the run did not end within {} s", longest.as_secs());
            }
            look();
            tokio::time::sleep(every).await;
        }
        Ok((id, self.began.elapsed()))
    }

    /// Submits the run file `text`.
    ///
    /// # Errors
    /// It is refused.
    pub(crate) async fn submit(&self, text: &str) -> anyhow::Result<RunId> {
        let spec = from_toml(text)?;
        let id = spec.name.clone();
        self.broker.append(id.as_str(), &Event::Submitted(Box::new(spec))).await?;
        Ok(id)
    }

    /// Whether a run has finished.
    ///
    /// # Errors
    /// It failed, or is paused.
    pub(crate) fn is_over(&self, id: &RunId) -> anyhow::Result<bool> {
        let state = self.shared.lock();
        let Some(run) = state.runs.get(id) else { return Ok(false) };
        if matches!(run.state, RunState::Paused | RunState::Failed) {
            bail!("the run is {}: {}", run.state.name(), run.reason.clone().unwrap_or_default());
        }
        Ok(run.state == RunState::Finished)
    }

    /// Ends the coordinator. What it knows stays readable.
    ///
    /// # Errors
    /// It had panicked.
    pub(crate) async fn end(self) -> anyhow::Result<SharedState> {
        self.stop.cancel();
        let _ = self.driven.await.context("the coordinator panicked")?;
        Ok(self.shared)
    }
}

/// The pools of these stages, with the tasks of each in flight.
pub(crate) fn pools(stages: impl IntoIterator<Item = (Stage, u32)>) -> Vec<PoolSettings> {
    let of_stage = |(stage, concurrency)| {
        let pools = default_pools(stage).into_iter().filter(|pool| POOLS.contains(&pool.as_str()));
        pools.map(move |pool| PoolSettings { stage, pool, concurrency })
    };
    stages.into_iter().flat_map(of_stage).collect()
}

/// A worker of these stages, until it is dropped.
pub(crate) async fn serve(
    broker: Broker,
    settings: WorkerSettings,
    stages: impl IntoIterator<Item = (Stage, u32)>,
    executor: impl Fn(Stage, &PolicyTable) -> Arc<dyn Executor>,
) {
    let worker = Worker::start(broker, settings);
    let policies = worker.policies().clone();
    let executor = |stage| executor(stage, &policies);
    worker.serve(pools(stages), executor, Health::default(), CancellationToken::new()).await;
}

/// When a stage of a machine that does both in turn may pull.
pub(crate) fn gate(division: Option<&TimeDivision>, stage: Stage) -> Option<watch::Receiver<bool>> {
    match stage {
        Stage::Generate => Some(division?.may_generate()),
        Stage::TrainShard => Some(division?.may_train()),
        Stage::EnvStep | Stage::Reward | Stage::PublishWeights | Stage::Submit => None,
    }
}

/// A draw of the standard normal distribution: Box and Muller, "A Note on the Generation of Random
/// Normal Deviates", 1958.
pub(crate) fn normal(stream: &mut Stream) -> f64 {
    let (a, b) = (stream.unit().max(1e-12), stream.unit());
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}
