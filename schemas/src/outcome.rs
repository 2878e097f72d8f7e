//! The result of a task, which its worker appends to the log. The first outcome of a task wins. A
//! task that cannot be done has no outcome: it becomes an
//! [`Event::DeadLetter`](crate::Event::DeadLetter).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::brief::{StepBrief, TurnBrief};
use crate::env_step::EnvStepDone;
use crate::file_name::{self, NotAFileName};
use crate::generate::{Finish, GenerateDone, MalformedTurn};
use crate::ids::{TaskKey, WorkerId};
use crate::limits::{
    MAX_CONTEXT_TOKENS, MAX_ENV_STATE_BYTES, MAX_METRIC_NAME_BYTES, MAX_METRICS, MAX_REASON_BYTES,
    MAX_REWARD, MAX_ROW_BYTES, MAX_SAID_BYTES, MAX_SHARD_FILES,
};
use crate::publish_weights::PublishWeightsDone;
use crate::reward::RewardDone;
use crate::stage::Stage;
use crate::train_shard::{StepVoid, TrainShardDone};

/// The end of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The task.
    pub key: TaskKey,
    /// The worker that did it.
    pub worker: WorkerId,
    /// Microseconds that its worker spent on it; for batched work, this task's share.
    pub busy_us: u64,
    /// Fingerprint of the request
    /// ([`Task::request_fingerprint`](crate::Task::request_fingerprint)). If it differs from the
    /// awaited task's, the outcome is ignored: it answers another task of the same key, which was
    /// queued by a part of the log that is lost. Older programs wrote a fingerprint of other
    /// content under `answers`; it is not compared.
    #[serde(default, skip_serializing_if = "Option::is_none", rename = "fingerprint")]
    pub request_fingerprint: Option<u64>,
    /// The result.
    pub body: OutcomeBody,
}

/// The result of a task, by stage.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeBody {
    /// A turn was sampled.
    Generate(GenerateDone),
    /// The environment was reset or stepped.
    EnvStep(EnvStepDone),
    /// A turn in brief. It only occurs in the log, beside a claim check; a worker writes the whole
    /// turn.
    TurnBrief(TurnBrief),
    /// The environment's step in brief.
    StepBrief(StepBrief),
    /// A score was given.
    Reward(RewardDone),
    /// A shard of a step was computed.
    TrainShard(TrainShardDone),
    /// A rank lost its gang: the attempt of the step is void, and the step restarts.
    Void(StepVoid),
    /// A version was committed.
    PublishWeights(PublishWeightsDone),
    /// The task was returned undone, because its worker leaves. It was removed from the queue, so
    /// that the delivery does not count, and is requeued.
    Returned(Returned),
}

/// Why a task was returned, and what there is of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Returned {
    /// For people.
    pub reason: String,
    /// The part of the turn that was sampled. The task is requeued with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Box<GenerateDone>>,
    /// That part in brief. It only occurs in the log, beside a claim check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<TurnBrief>,
}

impl Returned {
    /// Nothing was done of the task.
    #[must_use]
    pub fn undone(reason: String) -> Self {
        Self { reason, ..Self::default() }
    }

    /// The brief of the part of the turn that was sampled; `None` where nothing was.
    #[must_use]
    pub fn part(&self) -> Option<TurnBrief> {
        self.sampled.as_deref().map(TurnBrief::of).or_else(|| self.begun.clone())
    }
}

/// Why an outcome is malformed. Its task counts as a dead letter, never as a reward of 0.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MalformedOutcome {
    /// Key and body are of different stages.
    #[error("outcome of a {stage} task has the content of another stage")]
    OtherStage {
        /// The task's stage.
        stage: Stage,
    },
    /// A turn that could not be trained on.
    #[error(transparent)]
    Turn(#[from] MalformedTurn),
    /// A reward or score that is not a number, or too large.
    #[error("{what}={value} is no number from -{MAX_REWARD:e} to {MAX_REWARD:e}: it must be finite")]
    Number {
        /// Its name.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// Something is longer than its bound.
    #[error("{what} has length={length}, above {most}")]
    TooLong {
        /// Its name.
        what: &'static str,
        /// Its length.
        length: usize,
        /// The bound.
        most: usize,
    },
    /// A step metric that is not a finite number.
    #[error("metric {name} is {value}; it must be finite")]
    Metric {
        /// Its name.
        name: String,
        /// Its value.
        value: f64,
    },
    /// A file whose name could lead out of its folder.
    #[error(transparent)]
    FileName(#[from] NotAFileName),
    /// A file that is named twice.
    #[error("file name={0:?} is there twice")]
    Twice(String),
}

impl Outcome {
    /// Refuses an outcome that is invalid for any task. The worker checks it before it is written,
    /// and the fold before it is used.
    ///
    /// # Errors
    /// Names what is wrong, with its value.
    pub fn check(&self) -> Result<(), MalformedOutcome> {
        let stage = self.key.stage();
        if self.body.stage().is_some_and(|other| other != stage) {
            return Err(MalformedOutcome::OtherStage { stage });
        }
        match &self.body {
            OutcomeBody::Generate(done) => {
                check_ended(done.finish)?;
                Ok(done.check()?)
            }
            OutcomeBody::EnvStep(done) => {
                number("reward", done.reward)?;
                length("state", done.state.len(), MAX_ENV_STATE_BYTES)?;
                length("observation", done.observation.len(), MAX_CONTEXT_TOKENS)?;
                length("said", done.said.iter().map(|said| said.text.len()).sum(), MAX_SAID_BYTES)?;
                // Twice the bound: reserialised JSON may be longer than it was in the file.
                length("row", done.row.values().map(|value| value.to_string().len()).sum(), 2 * MAX_ROW_BYTES)
            }
            OutcomeBody::TurnBrief(brief) => {
                check_ended(brief.finish)?;
                Ok(brief.check()?)
            }
            OutcomeBody::StepBrief(brief) => {
                number("reward", brief.reward)?;
                length("observation", brief.tokens as usize, MAX_CONTEXT_TOKENS)
            }
            OutcomeBody::Reward(done) => {
                number("score", done.score)?;
                length("reason", done.reason.len(), MAX_REASON_BYTES)
            }
            OutcomeBody::TrainShard(done) => check_shard(done),
            OutcomeBody::Returned(returned) => {
                if let Some(sampled) = &returned.sampled {
                    sampled.check()?;
                }
                if let Some(begun) = &returned.begun {
                    begun.check()?;
                }
                length("reason", returned.reason.len(), MAX_REASON_BYTES)
            }
            OutcomeBody::Void(_) | OutcomeBody::PublishWeights(_) => Ok(()),
        }
    }
}

/// Refuses a turn that did not end.
fn check_ended(finish: Finish) -> Result<(), MalformedTurn> {
    if finish == Finish::Partial { Err(MalformedTurn::Partial) } else { Ok(()) }
}

impl OutcomeBody {
    /// Whether its task is done. A task that was returned is queued again.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        !matches!(self, Self::Returned(_))
    }

    /// The stage whose tasks have this outcome; `None` for all stages.
    #[must_use]
    pub const fn stage(&self) -> Option<Stage> {
        match self {
            Self::Generate(_) | Self::TurnBrief(_) => Some(Stage::Generate),
            Self::EnvStep(_) | Self::StepBrief(_) => Some(Stage::EnvStep),
            Self::Reward(_) => Some(Stage::Reward),
            Self::TrainShard(_) | Self::Void(_) => Some(Stage::TrainShard),
            Self::PublishWeights(_) => Some(Stage::PublishWeights),
            Self::Returned(_) => None,
        }
    }
}

fn number(what: &'static str, value: f64) -> Result<(), MalformedOutcome> {
    // NaN is within no bounds.
    if value.abs() <= MAX_REWARD { Ok(()) } else { Err(MalformedOutcome::Number { what, value }) }
}

fn length(what: &'static str, length: usize, most: usize) -> Result<(), MalformedOutcome> {
    if length <= most { Ok(()) } else { Err(MalformedOutcome::TooLong { what, length, most }) }
}

fn check_shard(done: &TrainShardDone) -> Result<(), MalformedOutcome> {
    length("files", done.files.len(), MAX_SHARD_FILES)?;
    for (index, file) in done.files.iter().enumerate() {
        let name = &file.name;
        file_name::check(name)?;
        if done.files[..index].iter().any(|other| other.name == *name) {
            return Err(MalformedOutcome::Twice(name.clone()));
        }
    }
    length("metrics", done.metrics.len(), MAX_METRICS)?;
    let longest = done.metrics.keys().map(String::len).max().unwrap_or(0);
    length("metric's name", longest, MAX_METRIC_NAME_BYTES)?;
    match done.metrics.iter().find(|(_, value)| !value.is_finite()) {
        Some((name, value)) => Err(MalformedOutcome::Metric { name: name.clone(), value: *value }),
        None => Ok(()),
    }
}
