//! The stages of a task. File names, subjects, spans, metrics and charts spell them the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A stage of a task's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A run is submitted. This is not a task: it enters by the API.
    Submit,
    /// The policy samples one turn.
    Generate,
    /// The environment resets or takes one action.
    EnvStep,
    /// A finished rollout gets a score.
    Reward,
    /// One rank's shard of an optimiser step.
    TrainShard,
    /// A trained version is committed and made visible.
    PublishWeights,
}

impl Stage {
    /// All stages in the order of a task's life.
    pub const ALL: [Self; 6] =
        [Self::Submit, Self::Generate, Self::EnvStep, Self::Reward, Self::TrainShard, Self::PublishWeights];

    /// The stages whose tasks wait in a queue for a worker.
    pub const QUEUED: [Self; 5] =
        [Self::Generate, Self::EnvStep, Self::Reward, Self::TrainShard, Self::PublishWeights];

    /// The name as it is spelled everywhere.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Generate => "generate",
            Self::EnvStep => "env_step",
            Self::Reward => "reward",
            Self::TrainShard => "train_shard",
            Self::PublishWeights => "publish_weights",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no stage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown stage value={0:?}; known: submit, generate, env_step, reward, train_shard, publish_weights")]
pub struct UnknownStage(String);

impl FromStr for Stage {
    type Err = UnknownStage;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|stage| stage.name() == s).ok_or_else(|| UnknownStage(s.into()))
    }
}
