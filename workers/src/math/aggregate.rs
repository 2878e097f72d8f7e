//! How losses per token become one number.

use tch::Tensor;

/// This part's share of `token_mean`: `Σ L·M / denominator`, the denominator being `Σ M` over all parts
/// (micro-batches and ranks). The shares add up to the mean over all tokens however they were split; no
/// response weighs by its length twice. Yu et al., "DAPO", 2025, equation 8.
pub fn token_mean(per_token: &Tensor, mask: &Tensor, denominator: f64) -> Tensor {
    (per_token * mask).sum(per_token.kind()) / denominator
}
