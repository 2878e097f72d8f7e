//! A device: how long what it computes takes, and how much of its time was used.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_policy::random::Stream;
use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask};
use millrace_schemas::train_shard::{TrainShardTask, TrainWork};
use millrace_schemas::{OutcomeBody, PolicyVersion, Stage, Task, TaskBody};
use millrace_workers::runtime::{Tenant, TimeDivision};
use millrace_workers::{Cost, Executor, Failure, PolicyTable, Retry, Verdict};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::bench::lives::outcome;
use crate::virtual_run::{gate, normal};

/// Turns that a device samples at once. Each goes at the same pace, however many there are: reading the
/// weights takes the time.
pub(super) const SLOTS: u32 = 8;
/// Tokens of a piece. A piece stands for them: it is one token of the outcome.
const PIECE: f64 = 64.0;
/// Pieces of the longest answer.
pub(super) const MOST_PIECES: u32 = 128;
/// A piece takes this time: 80 tokens a second and slot.
const PIECE_TIME: Duration = Duration::from_millis(800);
/// Tokens of an answer: their median, and the standard deviation of their logarithm.
const LENGTH: (f64, f64) = (1_000.0, 0.9);
/// The context and the first part of a continued turn are prefilled in this time.
const PREFILL: Duration = Duration::from_millis(500);
/// Weights and optimiser state change places: once before a step, once after it. Both are charged before it.
const MOVE: Duration = Duration::from_millis(3_000);
/// What a step takes beside its computation: collectives, files.
const STEP_OVERHEAD: Duration = Duration::from_millis(3_000);

/// What a device serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Generate,
    Train,
    /// Both, in turn.
    Flexible,
    /// None of them: environments and rewards.
    Play,
}

impl Kind {
    /// Stages, and tasks of each in flight.
    pub(super) const fn stages(self) -> &'static [(Stage, u32)] {
        match self {
            Self::Generate => &[(Stage::Generate, SLOTS)],
            Self::Train => &[(Stage::TrainShard, 1), (Stage::PublishWeights, 1)],
            Self::Flexible => &[(Stage::Generate, SLOTS), (Stage::TrainShard, 1), (Stage::PublishWeights, 1)],
            Self::Play => &[(Stage::EnvStep, 512), (Stage::Reward, 512)],
        }
    }
}

/// How long things take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    pub(super) seed: u64,
    /// Device-seconds of a step.
    pub(super) train_s: f64,
}

impl Pace {
    /// Pieces of an answer. A turn that is continued elsewhere has as many.
    fn pieces(&self, task: &GenerateTask) -> u32 {
        let mut stream = Stream::new(task.seed.wrapping_add(self.seed));
        let tokens = LENGTH.0 * (LENGTH.1 * normal(&mut stream)).exp();
        ((tokens / PIECE).ceil() as u32).clamp(1, MOST_PIECES)
    }

    fn step(&self, shard: &TrainShardTask) -> Duration {
        match shard.work {
            TrainWork::Initialise { .. } => Duration::from_millis(20),
            TrainWork::Step { .. } => {
                Duration::from_secs_f64(self.train_s / f64::from(shard.world)) + STEP_OVERHEAD
            }
        }
    }
}

/// A device and its use.
pub(super) struct Device {
    pub(super) kind: Kind,
    /// Set where generating and training share it.
    pub(super) division: Option<TimeDivision>,
    pace: Pace,
    meter: Mutex<Meter>,
}

struct Meter {
    since: Instant,
    turns: u32,
    trains: bool,
    used: Used,
}

/// Seconds, by what they were used for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    /// It sampled or trained.
    pub(super) busy_s: f64,
    /// It was given to a step.
    pub(super) trained_s: f64,
    /// Over its slots: they sampled.
    pub(super) slots_s: f64,
}

/// Counts a use until it is dropped.
struct Using<'a> {
    device: &'a Device,
    ends: fn(&mut Meter),
}

impl Drop for Using<'_> {
    fn drop(&mut self) {
        (self.ends)(&mut self.device.metered());
    }
}

impl Device {
    pub(super) fn new(kind: Kind, pace: Pace) -> Arc<Self> {
        let division = (kind == Kind::Flexible).then(TimeDivision::default);
        if let Some(division) = &division {
            division.set_engine(Arc::new(Moves));
        }
        let meter = Meter { since: Instant::now(), turns: 0, trains: false, used: Used::default() };
        Arc::new(Self { kind, division, pace, meter: Mutex::new(meter) })
    }

    /// The meter, up to date.
    fn metered(&self) -> MutexGuard<'_, Meter> {
        let mut meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        let passed = meter.since.elapsed().as_secs_f64();
        meter.since = Instant::now();
        let Meter { turns, trains, .. } = *meter;
        meter.used.busy_s += if turns > 0 || trains { passed } else { 0.0 };
        meter.used.trained_s += if trains { passed } else { 0.0 };
        meter.used.slots_s += passed * f64::from(turns);
        meter
    }

    pub(super) fn used(&self) -> Used {
        self.metered().used
    }

    fn samples(&self) -> Using<'_> {
        self.metered().turns += 1;
        Using { device: self, ends: |meter| meter.turns -= 1 }
    }

    fn trains(&self) -> Using<'_> {
        self.metered().trains = true;
        Using { device: self, ends: |meter| meter.trains = false }
    }

    /// The executor of a stage on this device.
    pub(super) fn executor(self: &Arc<Self>, stage: Stage, policies: &PolicyTable) -> Arc<dyn Executor> {
        Arc::new(Stages {
            stage,
            device: self.clone(),
            policies: policies.clone(),
            own: TimeDivision::default(),
        })
    }
}

/// Weights and state that change places.
struct Moves;

#[async_trait]
impl Tenant for Moves {
    async fn leave(&self) -> Result<(), String> {
        sleep(MOVE).await;
        Ok(())
    }

    fn come_back(&self) {}
}

/// Does the tasks of one stage.
struct Stages {
    stage: Stage,
    device: Arc<Device>,
    policies: PolicyTable,
    /// Of a device that is not shared.
    own: TimeDivision,
}

impl Stages {
    async fn sample(
        &self,
        mut task: GenerateTask,
        version: PolicyVersion,
        cancel: &CancellationToken,
    ) -> OutcomeBody {
        let turn = self.device.division.as_ref().unwrap_or(&self.own).begin_turn();
        let pieces = self.device.pace.pieces(&task);
        let mut done: GenerateDone = task.turn_so_far();
        let begun = done.tokens.len() as u32;
        let using = self.device.samples();
        let began = Instant::now();
        let prefill = if begun > 0 { PREFILL } else { Duration::ZERO };
        let sampling = sleep(prefill + PIECE_TIME * pieces.saturating_sub(begun));
        let is_whole = turn.hand_back().run_until_cancelled(sampling).await.is_some();
        let passed = began.elapsed().saturating_sub(prefill);
        drop((using, turn));
        let more = if is_whole {
            pieces.saturating_sub(begun)
        } else {
            (passed.as_secs_f64() / PIECE_TIME.as_secs_f64()) as u32
        };
        if !is_whole && more == 0 {
            cancel.cancel();
            return std::future::pending().await;
        }
        (0..more).for_each(|_| done.push(1, -0.5, version));
        done.finish = if is_whole { Finish::Length } else { Finish::Partial };
        OutcomeBody::Generate(done)
    }

    async fn train(&self, shard: &TrainShardTask) -> Result<(), Failure> {
        let _using = self.device.trains();
        let _step = match &self.device.division {
            Some(division) => {
                let begun = division.begin_step().await;
                Some(begun.map_err(|error| Failure::Retry(Retry::Restart, error.to_string()))?)
            }
            None => None,
        };
        sleep(self.device.pace.step(shard)).await;
        Ok(())
    }
}

#[async_trait]
impl Executor for Stages {
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict {
        let version = self.policies.get(&task.run).map_or(task.version, |policy| policy.version);
        match task.body {
            TaskBody::Generate(generate) => {
                Verdict::Done(self.sample(generate, version, &cancel).await, Cost::default())
            }
            TaskBody::TrainShard(shard) => match self.train(&shard).await {
                Ok(()) => Verdict::Done(outcome(TaskBody::TrainShard(shard), 1), Cost::default()),
                Err(failure) => failure.into(),
            },
            body => {
                sleep(Duration::from_millis(20)).await;
                Verdict::Done(outcome(body, 1), Cost::default())
            }
        }
    }

    fn gate(&self) -> Option<watch::Receiver<bool>> {
        gate(self.device.division.as_ref(), self.stage)
    }
}
