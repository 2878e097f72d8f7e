//! The KL term, which holds the policy near version 0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::omit;

/// A term that grows with the distance from version 0.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kl {
    /// Coefficient of the term; if it adapts, its initial value.
    pub coefficient: f64,
    /// How the distance is estimated. Default `k3`.
    #[serde(default = "Kl::default_estimator")]
    pub estimator: KlEstimator,
    /// What the term is part of. Default `loss`.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    #[schemars(extend("default" = "loss"))]
    pub place: KlPlace,
    /// Adapts the coefficient after each step so that the distance stays near a target. Default: it
    /// is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = null))]
    pub adapt: Option<KlTarget>,
}

impl Kl {
    /// A term of the loss with a constant coefficient.
    #[must_use]
    pub const fn of_loss(coefficient: f64, estimator: KlEstimator) -> Self {
        Self { coefficient, estimator, place: KlPlace::Loss, adapt: None }
    }

    const fn default_estimator() -> KlEstimator {
        KlEstimator::K3
    }
}

/// Estimates of a Kullback-Leibler divergence from one token, with d = log p − log p of the
/// reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlEstimator {
    /// d. In the reward alone: in the loss its gradient is that of a random token's
    /// log-probability, which has no pull on average.
    K1,
    /// d² / 2.
    K2,
    /// e^−d − 1 + d.
    K3,
}

/// What a distance is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KlPlace {
    /// Added to the loss of each token.
    #[default]
    Loss,
    /// Subtracted from the reward, turn by turn, before there are advantages.
    Reward,
}

/// A coefficient that adapts: after each step it is multiplied by `1 + clip(distance / target − 1,
/// ±0.2) · rollouts / horizon`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KlTarget {
    /// The target distance, in nats per token.
    pub target: f64,
    /// Rollouts over which the coefficient follows. Default 10000.
    #[serde(default = "KlTarget::default_horizon")]
    pub horizon: u64,
}

impl KlTarget {
    const fn default_horizon() -> u64 {
        10_000
    }
}
