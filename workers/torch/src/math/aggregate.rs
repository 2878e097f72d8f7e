//! Aggregation of losses per token to one number. Each token has a share, and the shares follow
//! from the whole update, so its parts may be added in any split.

use millrace_schemas::submit::Aggregation;

/// The size of an update's minibatch, over all forwards and members. Rejected tokens count, so that a
/// rejection does not change the share of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Whole {
    /// Sampled tokens.
    pub tokens: usize,
    /// Rollouts with a sampled token.
    pub rollouts: usize,
}

impl Whole {
    /// Of rollouts with these numbers of sampled tokens.
    #[must_use]
    pub fn of(lengths: impl Iterator<Item = usize>) -> Self {
        lengths.filter(|&length| length > 0).fold(Self::default(), |sum, length| Self {
            tokens: sum.tokens + length,
            rollouts: sum.rollouts + 1,
        })
    }

    /// The weight of a token's loss in a rollout of `length` sampled tokens, 1 or more:
    ///
    /// - `token_mean`: 1 / all tokens; no response weighs by its length twice. Yu et al., "DAPO",
    ///   2025, equation 8.
    /// - `seq_mean_token_mean`: 1 / (rollouts · length). Shao et al., "DeepSeekMath", 2024,
    ///   equation 3.
    /// - `seq_mean_token_sum_norm`: 1 / (rollouts · `constant`), whatever the length. Liu et al.,
    ///   "Understanding R1-Zero-Like Training", 2025, section 3.1.
    #[must_use]
    pub fn share(self, aggregation: Aggregation, constant: u32, length: usize) -> f64 {
        let rollouts = self.rollouts.max(1) as f64;
        match aggregation {
            Aggregation::TokenMean => 1.0 / self.tokens.max(1) as f64,
            Aggregation::SeqMeanTokenMean => 1.0 / (rollouts * length.max(1) as f64),
            Aggregation::SeqMeanTokenSumNorm => 1.0 / (rollouts * f64::from(constant.max(1))),
        }
    }
}

/// The part of the loss from these tokens: `Σ L · M · share`. A mask always multiplies.
pub fn add_up(per_token: &tch::Tensor, mask: &tch::Tensor, share: &tch::Tensor) -> tch::Tensor {
    (per_token * mask * share).sum(per_token.kind())
}
