//! How rewards become advantages, and how they are shaped before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How rewards become advantages. R is a rollout's reward, its group are the rollouts of the same
/// prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// (R − mean of the group) / (standard deviation of the group + 1e-6); zeros where that is ≤
    /// 1e-6.
    Grpo,
    /// R − mean of the group. With `seq_mean_token_sum_norm` it is Dr. GRPO whole.
    DrGrpo,
    /// R − mean of the others of the group: leave-one-out.
    Rloo,
    /// (R − mean of the group) / mean of the group; zeros where that is ≤ 1e-6. Rewards are 0 or
    /// more.
    MaxRl,
    /// (R − mean of the batch) / (standard deviation of the batch + 1e-6): REINFORCE++.
    ReinforcePlusPlus,
    /// (R − mean of the group) / (standard deviation of the batch + 1e-6): LitePPO.
    LitePpo,
    /// R, as `reward_norm` leaves it: REINFORCE, with a baseline and scale of your choice.
    Reinforce,
    /// 1 for the rollouts of a group that have its best reward, 0 for the others: RAFT.
    Raft,
    /// Each turn has the discounted return from it on: chunk-level credit.
    Chunk,
    /// That of the rollout among its group, plus that of each turn's return among the group's turns
    /// that saw the same: GiGPO.
    GiGpo,
    /// Of each token what came after it beyond what a critic had expected: generalised advantage
    /// estimation, then normalised over the batch. The critic is a row more on the model's head,
    /// trained along with it.
    Gae,
}

impl Advantage {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Grpo,
        Self::DrGrpo,
        Self::Rloo,
        Self::MaxRl,
        Self::ReinforcePlusPlus,
        Self::LitePpo,
        Self::Reinforce,
        Self::Raft,
        Self::Chunk,
        Self::GiGpo,
        Self::Gae,
    ];

    /// Whether a rollout is compared with the others of its group, so that a group of one has no
    /// signal.
    #[must_use]
    pub const fn compares_group(self) -> bool {
        !matches!(self, Self::ReinforcePlusPlus | Self::Reinforce | Self::Chunk | Self::Gae)
    }

    /// Whether rewards may be normalised before it: it compares no rollouts itself.
    #[must_use]
    pub const fn takes_reward_norm(self) -> bool {
        matches!(self, Self::Reinforce | Self::Chunk | Self::Gae)
    }

    /// Whether each turn has its own, from the environment's rewards.
    #[must_use]
    pub const fn is_by_turn(self) -> bool {
        matches!(self, Self::Chunk | Self::GiGpo | Self::Gae)
    }

    /// Whether a critic is trained beside the policy.
    #[must_use]
    pub const fn has_critic(self) -> bool {
        matches!(self, Self::Gae)
    }
}

/// Shaping of a rollout's reward before advantages are computed. The metric `reward` is not shaped.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Shaping {
    /// The reward is cut to ± this; 0 for no bound. Default 0.
    pub clip: f64,
    /// Sampled tokens from which on a rollout is overlong; 0 for none. Default 0.
    pub overlong_tokens: u32,
    /// Over so many tokens before that the penalty grows in a straight line. Default 0.
    pub overlong_buffer: u32,
    /// What an overlong rollout loses; above 0. Default 0.
    pub overlong_penalty: f64,
}

/// Normalisation of shaped rewards before advantages are computed: `(R − mean) / (std + 1e-6)`.
/// Each turn's part is divided likewise, and the mean is subtracted from the last turn's part. All
/// are zero if the standard deviation is ≤ 1e-6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RewardNorm {
    /// The rewards whose mean is subtracted. Default `none`.
    pub mean: NormOver,
    /// The rewards whose standard deviation divides, over n − 1. Default `none`.
    pub std: NormOver,
}

impl RewardNorm {
    /// Whether one of the two is over these.
    #[must_use]
    pub fn is_over(&self, over: NormOver) -> bool {
        self.mean == over || self.std == over
    }
}

/// The rewards that a mean or a standard deviation is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NormOver {
    /// There is none.
    #[default]
    None,
    /// Those of the rollout's group.
    Group,
    /// Those of the step's batch.
    Batch,
    /// Those of all batches so far, this one too.
    Running,
}
