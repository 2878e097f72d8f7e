//! Aggregation of token losses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The denominator of an update's token losses. It counts the whole update, independent of
/// micro-batches and ranks, including tokens that a correction rejects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The mean over all tokens.
    #[default]
    TokenMean,
    /// The mean over rollouts of the mean over their tokens.
    SeqMeanTokenMean,
    /// The mean over rollouts of the sum over their tokens, divided by
    /// `parameters.response_tokens`.
    SeqMeanTokenSumNorm,
}

impl Aggregation {
    /// Its name in the run file.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenMean => "token_mean",
            Self::SeqMeanTokenMean => "seq_mean_token_mean",
            Self::SeqMeanTokenSumNorm => "seq_mean_token_sum_norm",
        }
    }
}
