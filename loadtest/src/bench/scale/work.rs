//! Work that takes time: how long each task takes, on which clock, and what comes of it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use millrace_coordinator::shell::clock::unix_ms;
use millrace_schemas::blob::Sha;
use millrace_schemas::{Stage, Task, TaskKey};
use millrace_workers::{Cost, Executor, Verdict};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::bench::lives::outcome;

/// A turn is sampled in this time.
const TURN: Duration = Duration::from_millis(2_000);
/// An environment answers in this time, outside of a burst.
const STEP: Duration = Duration::from_millis(1_000);
/// In a burst its answers take so many times as long.
const BURST: u32 = 5;
/// A burst comes once in this time, and lasts a quarter of it.
const CYCLE: Duration = Duration::from_secs(600);
/// A train step takes this time, where the trainer is what the others must keep busy.
const TRAIN: Duration = Duration::from_secs(25);
/// A train step takes this time, where the others are what limits.
const SHORT_TRAIN: Duration = Duration::from_secs(1);
/// An instance starts in this time, give or take a third.
const START_UP: Duration = Duration::from_secs(45);
/// Turns of a rollout.
pub(super) const TURNS: u8 = 8;

/// The law of all times. Those of a task and those of the fleet are compressed apart.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Law {
    pub(super) seed: u64,
    /// Tasks take so many times less.
    pub(super) work_faster: f64,
    /// Start-up delays, notices and interruptions take so many times less.
    pub(super) fleet_faster: f64,
    /// Environments have bursts, and a train step is long.
    pub(super) bursts: bool,
}

impl Law {
    /// The law of virtual time: nothing is compressed.
    pub(super) const fn virtual_time(seed: u64, bursts: bool) -> Self {
        Self { seed, work_faster: 1.0, fleet_faster: 1.0, bursts }
    }
}

/// A task that a worker began.
#[derive(Debug, Clone)]
pub(super) struct Begun {
    pub(super) worker: String,
    pub(super) key: TaskKey,
    /// Seconds since the start.
    pub(super) at_s: f64,
}

/// Told of each task that begins, and of the seconds since the start.
pub(super) type Beginnings = Box<dyn Fn(TaskKey, f64) + Send + Sync>;

/// The pace of everything.
#[derive(Clone)]
pub(super) struct Pace {
    law: Law,
    start: Instant,
}

/// A pace on its way into another process.
#[derive(Serialize, Deserialize)]
struct Sent {
    law: Law,
    start_unix_ms: u64,
}

impl Pace {
    pub(super) const fn new(law: Law, start: Instant) -> Self {
        Self { law, start }
    }

    /// The same for a process of this machine.
    pub(super) fn to_json(&self) -> String {
        let start_unix_ms = unix_ms().saturating_sub(self.start.elapsed().as_millis() as u64);
        serde_json::to_string(&Sent { law: self.law, start_unix_ms }).expect("numbers are JSON")
    }

    /// What [`Self::to_json`] made.
    ///
    /// # Errors
    /// It is not.
    pub(super) fn from_json(text: &str) -> serde_json::Result<Self> {
        let Sent { law, start_unix_ms } = serde_json::from_str(text)?;
        let since = Duration::from_millis(unix_ms().saturating_sub(start_unix_ms));
        let now = Instant::now();
        Ok(Self { law, start: now.checked_sub(since).unwrap_or(now) })
    }

    /// A number from 0 to 1 that belongs to these words.
    pub(super) fn draw(&self, words: &str) -> f64 {
        let hash = Sha::of(format!("{} {words}", self.law.seed).as_bytes());
        let bytes: [u8; 4] = [hash.0[0], hash.0[1], hash.0[2], hash.0[3]];
        f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
    }

    /// Seconds since the start.
    pub(super) fn now_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// A time of the fleet, compressed.
    pub(super) fn of_fleet(&self, time: Duration) -> Duration {
        time.div_f64(self.law.fleet_faster)
    }

    /// Until an instance of this name serves.
    pub(super) fn start_up(&self, name: &str) -> Duration {
        self.of_fleet(START_UP.mul_f64(2.0 / 3.0 + self.draw(name) * 2.0 / 3.0))
    }

    fn takes(&self, task: &Task) -> Duration {
        // Tasks differ by half of their mean, each way.
        let uneven = 0.5 + self.draw(&task.key.to_string());
        let cycle = CYCLE.div_f64(self.law.work_faster);
        let passed = self.now_s() / cycle.as_secs_f64();
        let in_burst = self.law.bursts && passed.fract() > 0.5 && passed.fract() < 0.75;
        let takes = match task.stage() {
            Stage::Generate => TURN.mul_f64(uneven),
            Stage::EnvStep if in_burst => (BURST * STEP).mul_f64(uneven),
            Stage::EnvStep => STEP.mul_f64(uneven),
            Stage::TrainShard if self.law.bursts => TRAIN,
            Stage::TrainShard => SHORT_TRAIN,
            Stage::Reward | Stage::PublishWeights | Stage::Submit => Duration::from_millis(20),
        };
        takes.div_f64(self.law.work_faster)
    }
}

/// Does tasks in their time, and nothing else.
pub(super) struct Worker {
    pace: Pace,
    begins: Beginnings,
}

#[async_trait]
impl Executor for Worker {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        (self.begins)(task.key, self.pace.now_s());
        sleep(self.pace.takes(&task)).await;
        Verdict::Done(outcome(task.body, TURNS), Cost::default())
    }
}

impl Worker {
    pub(super) fn of(
        pace: &Pace,
        begins: impl Fn(TaskKey, f64) + Send + Sync + 'static,
    ) -> Arc<dyn Executor> {
        Arc::new(Self { pace: pace.clone(), begins: Box::new(begins) })
    }
}

/// An executor that takes a task's time before it executes it.
pub(super) struct Slow {
    pub(super) pace: Pace,
    pub(super) executor: Arc<dyn Executor>,
    /// Fires when its worker's grace period is over.
    pub(super) leaving: CancellationToken,
    /// Called when a task begins.
    pub(super) begins: Arc<Beginnings>,
}

#[async_trait]
impl Executor for Slow {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        (self.begins)(task.key, self.pace.now_s());
        if self.leaving.run_until_cancelled(sleep(self.pace.takes(&task))).await.is_none() {
            return Verdict::RetryAfter(Duration::ZERO, "its worker handed it back".to_owned());
        }
        self.executor.execute(task, cancel).await
    }

    fn passes_on(&self, task: &Task) -> bool {
        self.executor.passes_on(task)
    }

    fn hand_back(&self) -> bool {
        self.leaving.cancel();
        self.executor.hand_back()
    }

    fn gate(&self) -> Option<tokio::sync::watch::Receiver<bool>> {
        self.executor.gate()
    }

    async fn linger(&self) {
        self.executor.linger().await;
    }

    fn is_well(&self) -> bool {
        self.executor.is_well()
    }

    fn waits_for(&self) -> Option<String> {
        self.executor.waits_for()
    }
}

/// Notes each task that begins in a file, a line with its key and the seconds since the start. A line is
/// written at once, so that a kill loses none.
///
/// # Errors
/// The file cannot be made.
pub(super) fn notes_in(path: &Path) -> anyhow::Result<Beginnings> {
    let file = File::options().create(true).append(true).open(path);
    let file = file.with_context(|| format!("failed to open {}", path.display()))?;
    Ok(Box::new(move |key, at_s| {
        if let Err(error) = (&file).write_all(format!("{key} {at_s}\n").as_bytes()) {
            tracing::error!(%error, "failed to note a task that begins");
        }
    }))
}
