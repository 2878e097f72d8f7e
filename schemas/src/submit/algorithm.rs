//! How the policy is trained, and what of it may be asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::validate::Checks;

/// How the policy is trained. What came later than the first release is written only where it is not the default, so
/// that a run file of before keeps its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Algorithm {
    /// How rewards become advantages. Default `grpo`.
    pub advantage: Advantage,
    /// The loss. Default `ppo_clip`.
    pub loss: Loss,
    /// Whose log-probabilities the ratio is taken against. Default `behaviour`.
    pub old: OldPolicy,
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
    /// How the learning rate goes on from there. Default `constant`.
    #[serde(skip_serializing_if = "Schedule::is_constant")]
    #[schemars(extend("default" = "constant"))]
    pub schedule: Schedule,
    /// The step, counted from the first, at which the learning rate has come down to `floor`; it stays there.
    /// Default 0, which only `constant` takes.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(extend("default" = 0))]
    pub decay_steps: u64,
    /// What the learning rate comes down to, as a share of `learning_rate`. Default 0.
    #[serde(skip_serializing_if = "is_none")]
    #[schemars(extend("default" = 0.0))]
    pub floor: f64,
    /// AdamW's first decay. Default 0.9.
    pub adam_beta1: f64,
    /// AdamW's second decay. Default 0.95.
    pub adam_beta2: f64,
    /// AdamW's decay of weights: of the layers' matrices, and of the groups that follow. Default 0.
    pub weight_decay: f64,
    /// Embedding and output layer are decayed. Default true.
    #[serde(skip_serializing_if = "is_true")]
    #[schemars(extend("default" = true))]
    pub decay_embeddings: bool,
    /// Norms are decayed. Default false.
    #[serde(skip_serializing_if = "is_false")]
    #[schemars(extend("default" = false))]
    pub decay_norms: bool,
    /// Biases are decayed. Default false.
    #[serde(skip_serializing_if = "is_false")]
    #[schemars(extend("default" = false))]
    pub decay_biases: bool,
    /// The gradient's norm is cut to this. Default 1.
    pub max_grad_norm: f64,
    /// Coefficient of the entropy bonus. Default 0.01.
    pub entropy: f64,
    /// Holds the policy near version 0. Default: nothing does.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub kl: Option<Kl>,
    /// Tokens of one forward and backward pass; the loss does not depend on it. Default 16384.
    pub tokens_per_microbatch: u32,
    /// Keep only what goes into each layer and compute the layer again in backward: less memory, a third more
    /// work, the same numbers. Default false.
    #[serde(skip_serializing_if = "is_false")]
    #[schemars(extend("default" = false))]
    pub recompute: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_none(share: &f64) -> bool {
    *share == 0.0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_true(flag: &bool) -> bool {
    *flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Schedule {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
    const fn is_constant(&self) -> bool {
        matches!(self, Self::Constant)
    }
}

impl Default for Algorithm {
    fn default() -> Self {
        Self {
            advantage: Advantage::Grpo,
            loss: Loss::PpoClip,
            old: OldPolicy::Behaviour,
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
            kl: None,
            tokens_per_microbatch: 16_384,
            recompute: false,
        }
    }
}

/// How rewards become advantages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Advantage {
    /// (R − mean of the group) / (standard deviation of the group + 1e-6); zeros where that is ≤ 1e-6.
    Grpo,
    /// R − mean of the group.
    DrGrpo,
}

/// The policy loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// −min(r·A, clip(r)·A).
    PpoClip,
    /// −A·log p.
    PolicyGradient,
}

/// Whose log-probabilities `r = exp(log p − log p_old)` is taken against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OldPolicy {
    /// Those recorded when the token was sampled.
    Behaviour,
    /// Those of the version trained on, computed before the first update of the step.
    Proximal,
}

/// How the learning rate goes on after it rose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// It stays.
    Constant,
    /// It comes down in a straight line.
    Linear,
    /// It comes down along half a cosine.
    Cosine,
}

/// A term of the loss that grows with the distance from version 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kl {
    /// Multiplies the term.
    pub coefficient: f64,
    /// How the distance is estimated. Default `k3`.
    #[serde(default = "Kl::default_estimator")]
    pub estimator: KlEstimator,
}

impl Kl {
    const fn default_estimator() -> KlEstimator {
        KlEstimator::K3
    }
}

/// Estimates of a Kullback-Leibler divergence from one token, with d = log p − log p of the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// d. As a loss it has no pull on average: its gradient is that of a random token's log-probability.
    K1,
    /// d² / 2.
    K2,
    /// e^−d − 1 + d.
    K3,
}

impl Algorithm {
    /// What of it cannot work.
    pub(super) fn check(&self, checks: &mut Checks) {
        checks.number("algorithm.clip_low", self.clip_low, 0.0, 1.0);
        checks.number("algorithm.clip_high", self.clip_high, 0.0, 1e6);
        checks.count("algorithm.epochs", u64::from(self.epochs), 1, 1_000);
        checks.count("algorithm.minibatches", u64::from(self.minibatches), 1, 10_000);
        checks.number("algorithm.learning_rate", self.learning_rate, 0.0, 10.0);
        checks.require(
            self.learning_rate != 0.0,
            "algorithm.learning_rate",
            0,
            "nothing would be learnt; choose a number above 0",
        );
        checks.number("algorithm.adam_beta1", self.adam_beta1, 0.0, 0.999_999_999);
        checks.number("algorithm.adam_beta2", self.adam_beta2, 0.0, 0.999_999_999);
        checks.number("algorithm.weight_decay", self.weight_decay, 0.0, 10.0);
        self.check_schedule(checks);
        checks.number("algorithm.max_grad_norm", self.max_grad_norm, 1e-9, 1e9);
        checks.number("algorithm.entropy", self.entropy, 0.0, 10.0);
        checks.count(
            "algorithm.tokens_per_microbatch",
            u64::from(self.tokens_per_microbatch),
            1,
            u64::from(u32::MAX),
        );
        checks.require(
            !(self.old == OldPolicy::Proximal && self.epochs == 1 && self.minibatches == 1),
            "algorithm.old",
            "proximal",
            "with one update a step the ratio to the version trained on is always 1 and clipping does nothing; choose \"behaviour\", or more epochs or minibatches",
        );
        if let Some(kl) = &self.kl {
            checks.number("algorithm.kl.coefficient", kl.coefficient, 0.0, 1e3);
            checks.require(
                kl.coefficient != 0.0,
                "algorithm.kl.coefficient",
                0,
                "the reference model would be computed for nothing; choose a number above 0, or leave out algorithm.kl",
            );
        }
    }

    fn check_schedule(&self, checks: &mut Checks) {
        checks.number("algorithm.floor", self.floor, 0.0, 1.0);
        let comes_down = self.schedule != Schedule::Constant;
        checks.require(
            !comes_down || self.decay_steps > self.warmup_steps,
            "algorithm.decay_steps",
            self.decay_steps,
            format!(
                "the learning rate comes down after its rise; choose more than algorithm.warmup_steps = {}, the run's steps for example",
                self.warmup_steps
            ),
        );
        checks.require(
            comes_down || (self.decay_steps == 0 && self.floor == 0.0),
            "algorithm.schedule",
            "constant",
            "it never comes down; choose \"linear\" or \"cosine\", or leave out algorithm.decay_steps and algorithm.floor",
        );
    }
}
