//! Work that takes time: how long each task takes, and what comes of it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_schemas::blob::Sha;
use millrace_schemas::{Stage, Task};
use millrace_workers::{Cost, Executor, Verdict};
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
/// A train step takes this time.
const TRAIN: Duration = Duration::from_secs(25);
/// An instance starts in this time, give or take a third.
const START_UP: Duration = Duration::from_secs(45);
/// Turns of a rollout.
const TURNS: u8 = 8;

/// The pace of everything.
#[derive(Clone)]
pub(super) struct Pace {
    seed: u64,
    start: Instant,
}

impl Pace {
    pub(super) const fn new(seed: u64, start: Instant) -> Self {
        Self { seed, start }
    }

    /// A number from 0 to 1 that belongs to these words.
    pub(super) fn draw(&self, words: &str) -> f64 {
        let hash = Sha::of(format!("{} {words}", self.seed).as_bytes());
        let bytes: [u8; 4] = [hash.0[0], hash.0[1], hash.0[2], hash.0[3]];
        f64::from(u32::from_be_bytes(bytes)) / f64::from(u32::MAX)
    }

    /// Until an instance of this name serves.
    pub(super) fn start_up(&self, name: &str) -> Duration {
        START_UP.mul_f64(2.0 / 3.0 + self.draw(name) * 2.0 / 3.0)
    }

    fn takes(&self, task: &Task) -> Duration {
        // Tasks differ by half of their mean, each way.
        let uneven = 0.5 + self.draw(&task.key.to_string());
        let passed = self.start.elapsed().as_secs_f64() / CYCLE.as_secs_f64();
        let in_burst = passed.fract() > 0.5 && passed.fract() < 0.75;
        match task.stage() {
            Stage::Generate => TURN.mul_f64(uneven),
            Stage::EnvStep if in_burst => (BURST * STEP).mul_f64(uneven),
            Stage::EnvStep => STEP.mul_f64(uneven),
            Stage::TrainShard => TRAIN,
            Stage::Reward | Stage::PublishWeights | Stage::Submit => Duration::from_millis(20),
        }
    }
}

/// Does tasks in their time.
pub(super) struct Worker {
    pub(super) pace: Pace,
}

#[async_trait]
impl Executor for Worker {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        sleep(self.pace.takes(&task)).await;
        Verdict::Done(outcome(task.body, TURNS), Cost::default())
    }
}

impl Worker {
    pub(super) fn of(pace: &Pace) -> Arc<dyn Executor> {
        Arc::new(Self { pace: pace.clone() })
    }
}
