//! Policy mirror descent.

use tch::Tensor;

use super::{PolicyLoss, Span, none_clipped};

/// Kimi k1.5: `−A log_p + (tau / 2) squared`, where `squared` is that of the rollout's log-ratio,
/// `square_of_sum`: Kimi Team, "Kimi k1.5", 2025, equation 3. With the token's own log-ratio
/// squared it is the form of ROLL.
#[must_use]
pub fn kimi(log_p: &Tensor, squared: &Tensor, advantage: &Tensor, tau: f64) -> PolicyLoss {
    PolicyLoss { loss: squared * (tau / 2.0) - advantage * log_p, clipped: none_clipped(advantage) }
}

/// Each token's part of `(Σ log r)²` of its span, with D = Σ log r: its value is D² / T, so that
/// the T tokens have D² together, and its gradient by the token's own log-probability 2 D, as that
/// of the whole.
pub(super) fn square_of_sum(log_p: &Tensor, span: Span<'_>) -> Tensor {
    let sum = (span.mean_log_ratio * span.length).detach();
    &sum * span.mean_log_ratio.detach() + (log_p - log_p.detach()) * sum * 2.0
}
