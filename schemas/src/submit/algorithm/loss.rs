//! The policy's loss and its reference policy.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The policy loss of a token, with p, o and m its probability under the current, the proximal and
/// the behaviour policy, r = p / o, and A the advantage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// −min(r·A, clip(r)·A).
    PpoClip,
    /// −A·log p.
    PolicyGradient,
    /// −clip(r)·A·log p, the weight without gradient.
    Cispo,
    /// −A·log p where A is positive, else −clip(r, 0, 1)·A·log p, the weight without gradient.
    Topr,
    /// As `ppo_clip`, with one ratio for the rollout: the geometric mean of its tokens'. Aggregated
    /// by `seq_mean_token_mean` alone: the paper's is a mean over rollouts.
    Gspo,
    /// As `ppo_clip`, with one ratio for each turn: the geometric mean of its tokens'.
    Segment,
    /// −A·log p summed over the rollout + (tau / 2)·(Σ log r)²; with `ratio = "token"`, (log r)² of
    /// each token.
    Kimi,
    /// −A·p / m + pull·(log p − log m)², its first part not where p − m passes delta in the
    /// advantage's direction.
    DppoTv,
}

impl Loss {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::PpoClip,
        Self::PolicyGradient,
        Self::Cispo,
        Self::Topr,
        Self::Gspo,
        Self::Segment,
        Self::Kimi,
        Self::DppoTv,
    ];

    /// Whether it depends on the old policy.
    #[must_use]
    pub const fn sees_old(self) -> bool {
        !matches!(self, Self::PolicyGradient | Self::DppoTv)
    }

    /// Over which tokens its ratio may be, the default first.
    #[must_use]
    pub const fn ratio_levels(self) -> &'static [RatioLevel] {
        match self {
            Self::PpoClip | Self::PolicyGradient | Self::DppoTv => &[RatioLevel::Token],
            Self::Cispo | Self::Topr => &[RatioLevel::Token, RatioLevel::Turn, RatioLevel::Rollout],
            Self::Gspo => &[RatioLevel::Rollout],
            Self::Segment => &[RatioLevel::Turn],
            Self::Kimi => &[RatioLevel::Rollout, RatioLevel::Token],
        }
    }

    /// Whether it has the bounds `clip_low` and `clip_high`.
    #[must_use]
    pub const fn clips(self) -> bool {
        matches!(self, Self::PpoClip | Self::Cispo | Self::Gspo | Self::Segment)
    }
}

/// The tokens that share one ratio r: the geometric mean of theirs. Of `kimi`, the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RatioLevel {
    /// Each token has its own.
    Token,
    /// Those of a turn: the chunks of IPA.
    Turn,
    /// Those of a rollout.
    Rollout,
}

impl RatioLevel {
    /// Its name in the run file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Turn => "turn",
            Self::Rollout => "rollout",
        }
    }
}

/// Whose log-probabilities `r = exp(log p − log p_old)` is taken against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OldPolicy {
    /// Those recorded when the token was sampled.
    Behaviour,
    /// Those of the version trained on, computed before the first update of the step.
    Proximal,
    /// The policy in training itself: every ratio is 1, on purpose.
    Current,
}

impl OldPolicy {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Behaviour, Self::Proximal, Self::Current];

    /// Its name in the run file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Behaviour => "behaviour",
            Self::Proximal => "proximal",
            Self::Current => "current",
        }
    }
}

/// Parameters of single advantages, losses and aggregations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Parameters {
    /// `chunk` and `gi_gpo`: discount of a turn's return in the turn before. Default 0.95.
    pub discount: f64,
    /// `gi_gpo`: weight of the turns' part beside the rollout's. Default 1.
    pub turn_weight: f64,
    /// `ppo_clip`, `gspo`, `segment`: for a negative advantage r counts at most this, more than 1;
    /// 0 for no bound. Default 0.
    pub dual_clip: f64,
    /// `kimi`: weight of the squared log-ratio. Default 0.1.
    pub tau: f64,
    /// `dppo_tv`: how far a probability may move. Default 0.2.
    pub delta: f64,
    /// `dppo_tv`: weight of the squared log-ratio. Default 0.001.
    pub pull: f64,
    /// `seq_mean_token_sum_norm`: what a rollout's sum is divided by, the most tokens that one may
    /// have sampled for example. Default 0.
    pub response_tokens: u32,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            discount: 0.95,
            turn_weight: 1.0,
            dual_clip: 0.0,
            tau: 0.1,
            delta: 0.2,
            pull: 1e-3,
            response_tokens: 0,
        }
    }
}
