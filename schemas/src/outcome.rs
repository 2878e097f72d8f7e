//! What a worker says of a task that it did, once, into the log. The first outcome of a task wins. A task
//! that cannot be done has no outcome: it becomes an [`Event::DeadLetter`](crate::Event::DeadLetter).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::env_step::EnvStepDone;
use crate::generate::GenerateDone;
use crate::ids::{TaskKey, WorkerId};
use crate::publish_weights::PublishWeightsDone;
use crate::reward::RewardDone;
use crate::train_shard::{StepVoid, TrainShardDone};

/// The end of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The task.
    pub key: TaskKey,
    /// Who did it.
    pub worker: WorkerId,
    /// Microseconds that its worker spent on it; for batched work, this task's share.
    pub busy_us: u64,
    /// What came of it.
    pub body: OutcomeBody,
}

/// What came of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OutcomeBody {
    /// A turn was sampled.
    Generate(GenerateDone),
    /// The environment answered.
    EnvStep(EnvStepDone),
    /// A score was given.
    Reward(RewardDone),
    /// A share of a step was computed.
    TrainShard(TrainShardDone),
    /// A rank lost its gang: the step is void and is made again.
    Void(StepVoid),
    /// A version was committed.
    PublishWeights(PublishWeightsDone),
}
