//! How losses of tokens become one number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the losses of an update's tokens are divided by. It counts the whole update, whatever forwards and members it
/// is split over, and the tokens that a correction rejects too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Aggregation {
    /// The mean over all tokens.
    #[default]
    TokenMean,
    /// The mean over rollouts of the mean over their tokens.
    SeqMeanTokenMean,
    /// The mean over rollouts of the sum over their tokens, divided by `parameters.response_tokens`.
    SeqMeanTokenSumNorm,
}

impl Aggregation {
    /// As the run file names it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokenMean => "token_mean",
            Self::SeqMeanTokenMean => "seq_mean_token_mean",
            Self::SeqMeanTokenSumNorm => "seq_mean_token_sum_norm",
        }
    }
}
