//! Off-policy correction, for a behaviour policy that differs from the proximal one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Corrects the loss if the behaviour policy differs from the proximal one, with ρ = p_proximal /
/// p_behaviour. The weight multiplies the loss, without gradient.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Correction {
    /// The weight of a token's loss. Default `none`.
    pub weight: CorrectionWeight,
    /// No weight is above this; 0 for no bound. Default 2.
    pub cap: f64,
    /// Which tokens, turns or rollouts are rejected. Default `none`.
    pub reject: Rejection,
    /// The least that is not rejected. Default: 0.5 for `token`, `sequence` and `turn`, 0.99 for
    /// `geometric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub low: Option<f64>,
    /// The most that is not rejected. Default: 5 for `token`, 2 for `sequence` and `turn`, 1.01 for
    /// `geometric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub high: Option<f64>,
    /// A rollout with any ρ below this is rejected; 0 for no such bound. Default 0.
    pub veto: f64,
}

impl Default for Correction {
    fn default() -> Self {
        Self {
            weight: CorrectionWeight::None,
            cap: 2.0,
            reject: Rejection::None,
            low: None,
            high: None,
            veto: 0.0,
        }
    }
}

impl Correction {
    /// Whether it changes nothing.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        matches!(self.weight, CorrectionWeight::None)
            && matches!(self.reject, Rejection::None)
            && self.veto == 0.0
    }

    /// The bounds of what is not rejected.
    #[must_use]
    pub fn bounds(&self) -> (f64, f64) {
        let (low, high) = match self.reject {
            Rejection::Geometric => (0.99, 1.01),
            Rejection::Token => (0.5, 5.0),
            Rejection::None | Rejection::Sequence | Rejection::Turn => (0.5, 2.0),
        };
        (self.low.unwrap_or(low), self.high.unwrap_or(high))
    }
}

/// The weight of a token's loss: truncated importance sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CorrectionWeight {
    /// 1.
    #[default]
    None,
    /// Its own ρ.
    Token,
    /// The geometric mean of its turn's.
    Turn,
    /// The product of the rollout's.
    Sequence,
}

/// What is rejected if it is out of bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// Nothing.
    #[default]
    None,
    /// Tokens, by their own ρ: with `weight = "token"` and `cap = 0`, IcePop.
    Token,
    /// Rollouts, by the product of ρ: masked importance sampling.
    Sequence,
    /// Rollouts, by the geometric mean of ρ.
    Geometric,
    /// Turns, by the geometric mean of their ρ.
    Turn,
}
