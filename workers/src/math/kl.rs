//! How far a policy is from a reference, as a term of the loss.

use millrace_schemas::submit::KlEstimator;
use tch::Tensor;

use super::ratio::log_ratio;

/// The estimate of KL(p ‖ ref) from each token that p drew: d, d² / 2 or e^−d − 1 + d with `d = log_p − log_ref`.
/// Gradients go through `log_p`. Schulman, "Approximating KL Divergence", 2020.
pub fn kl(estimator: KlEstimator, log_p: &Tensor, log_ref: &Tensor) -> Tensor {
    let d = log_ratio(log_p, &log_ref.detach());
    match estimator {
        KlEstimator::K1 => d,
        KlEstimator::K2 => d.square() / 2.0,
        KlEstimator::K3 => (-&d).exp() - 1.0 + d,
    }
}
