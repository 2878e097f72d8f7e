//! Settings of training, and their checks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::omit;

mod advantage;
mod loss;
mod correction;
mod critic;
mod aggregation;
mod kl;
mod schedule;
mod check;

pub use advantage::{Advantage, NormOver, RewardNorm, Shaping};
pub use aggregation::Aggregation;
pub(super) use check::check_signal;
pub use correction::{Correction, CorrectionWeight, Rejection};
pub use critic::Critic;
pub use kl::{Kl, KlEstimator, KlPlace, KlTarget};
pub use loss::{Loss, OldPolicy, Parameters, RatioLevel};
pub use schedule::Schedule;

/// How the policy is trained. Settings that are newer than the first release are written only if
/// they are not the default, so that older run files keep their hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Algorithm {
    /// How rewards become advantages. Default `grpo`.
    pub advantage: Advantage,
    /// The loss. Default `ppo_clip`.
    pub loss: Loss,
    /// Which tokens share one ratio. Default: each token has its own, but those of a rollout share
    /// it in `gspo` and `kimi`, those of a turn in `segment`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub ratio: Option<RatioLevel>,
    /// The policy in the denominator of the ratio. Default `behaviour`.
    pub old: OldPolicy,
    /// Correction for a behaviour policy that differs from the proximal one. Default: none.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = {}))]
    pub correction: Correction,
    /// What the losses of all tokens are divided by. Default `token_mean`.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = "token_mean"))]
    pub aggregation: Aggregation,
    /// Reward shaping. Default: none.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = {}))]
    pub shaping: Shaping,
    /// Normalisation of rewards, after shaping. Default: none.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = {}))]
    pub reward_norm: RewardNorm,
    /// Advantages are normalised over all tokens of the batch: `(A − mean) / (standard deviation +
    /// 1e-6)`. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub whiten_advantages: bool,
    /// Advantages are cut to ± this, after all else; 0 for no bound. Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0.0))]
    pub advantage_clip: f64,
    /// Mask truncated rollouts: they do not count in the loss, nor in its denominator; their
    /// rewards are compared as any: those whose last turn ended at `rollout.max_new_tokens`, where
    /// that is more than 1, and those that took all of several turns without reaching the goal.
    /// Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub mask_truncated: bool,
    /// Parameters of single advantages, losses and aggregations. Default: those of their papers.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = {}))]
    pub parameters: Parameters,
    /// The critic of `gae`. Default: as the papers have it.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = {}))]
    pub critic: Critic,
    /// The ratio is clipped below at 1 minus this. Default 0.2.
    pub clip_low: f64,
    /// The ratio is clipped above at 1 plus this. Default 0.2.
    pub clip_high: f64,
    /// Passes over the batch in one step. Default 2.
    pub epochs: u32,
    /// Optimiser updates in one pass. Default 1.
    pub minibatches: u32,
    /// Learning rate. Default 0.002.
    pub learning_rate: f64,
    /// Steps over which the learning rate rises from 0. Default 0.
    pub warmup_steps: u64,
    /// The schedule of the learning rate after that. Default `constant`.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = "constant"))]
    pub schedule: Schedule,
    /// The step, counted from the first, at which the learning rate has come down to `floor`; it
    /// stays there. Default 0, which only `constant` takes.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0))]
    pub decay_steps: u64,
    /// The final learning rate, as a share of `learning_rate`. Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0.0))]
    pub floor: f64,
    /// AdamW's first decay. Default 0.9.
    pub adam_beta1: f64,
    /// AdamW's second decay. Default 0.95.
    pub adam_beta2: f64,
    /// AdamW's decay of weights: of the layers' matrices, and of the groups that follow. Default 0.
    pub weight_decay: f64,
    /// Embedding and output layer are decayed. Default true.
    #[serde(skip_serializing_if = "omit::is_true")]
    #[schemars(extend("default" = true))]
    pub decay_embeddings: bool,
    /// Norms are decayed. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub decay_norms: bool,
    /// Biases are decayed. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub decay_biases: bool,
    /// The gradient's norm is cut to this. Default 1.
    pub max_grad_norm: f64,
    /// Coefficient of the entropy bonus. Default 0.01.
    pub entropy: f64,
    /// Coefficient of imitation: −log p of each token of the rollouts that reached the goal.
    /// Default 0.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = 0.0))]
    pub imitation: f64,
    /// A KL term that holds the policy near version 0. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub kl: Option<Kl>,
    /// Tokens of one forward and backward pass, where those that a rollout begins with as another
    /// does count a quarter; the loss does not depend on it. Default 16384.
    pub tokens_per_microbatch: u32,
    /// Activation checkpointing: keep only the input of each layer and recompute the layer in
    /// backward. Less memory, a third more work, the same numbers. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub recompute: bool,
    /// The inputs that `recompute` keeps wait in the host's memory instead of the device's. Two copies
    /// of each per step, the same numbers. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub offload_activations: bool,
    /// The optimiser's state waits in the host's memory, and visits the device in parts at each update:
    /// a GPU then has 12 bytes less for each weight that this member owns (8 of a model in f32). The same
    /// numbers. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub offload_optimizer: bool,
    /// ZeRO's second stage: each member of a gang keeps its part of the gradient instead of all of
    /// it, and the gang reduces after each forward instead of each update. The same numbers but for
    /// the order of sums; alone it changes nothing. It saves most with `recompute`. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub shard_gradients: bool,
    /// ZeRO's third stage: each member of a gang keeps its part of the weights too, and the gang
    /// gathers them layer by layer. The numbers of `algorithm.shard_gradients`, which it needs, with
    /// `algorithm.recompute`. Alone it changes nothing. Default false.
    #[serde(skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = false))]
    pub shard_weights: bool,
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            advantage: Advantage::Grpo,
            loss: Loss::PpoClip,
            ratio: None,
            old: OldPolicy::Behaviour,
            correction: Correction::default(),
            aggregation: Aggregation::TokenMean,
            shaping: Shaping::default(),
            reward_norm: RewardNorm::default(),
            whiten_advantages: false,
            advantage_clip: 0.0,
            mask_truncated: false,
            parameters: Parameters::default(),
            critic: Critic::default(),
            clip_low: 0.2,
            clip_high: 0.2,
            epochs: 2,
            minibatches: 1,
            learning_rate: 2e-3,
            warmup_steps: 0,
            schedule: Schedule::Constant,
            decay_steps: 0,
            floor: 0.0,
            adam_beta1: 0.9,
            adam_beta2: 0.95,
            weight_decay: 0.0,
            decay_embeddings: true,
            decay_norms: false,
            decay_biases: false,
            max_grad_norm: 1.0,
            entropy: 0.01,
            imitation: 0.0,
            kl: None,
            tokens_per_microbatch: 16_384,
            recompute: false,
            offload_activations: false,
            offload_optimizer: false,
            shard_gradients: false,
            shard_weights: false,
        }
    }
}

impl Algorithm {
    /// Optimiser updates of a step.
    #[must_use]
    pub const fn updates(&self) -> u64 {
        self.epochs as u64 * self.minibatches as u64
    }

    /// Which tokens share one ratio.
    #[must_use]
    pub fn ratio_level(&self) -> RatioLevel {
        self.ratio.unwrap_or(self.loss.ratio_levels()[0])
    }
}
