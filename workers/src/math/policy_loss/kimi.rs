//! Policy mirror descent.

use tch::Tensor;

use super::{PolicyLoss, none_clipped};

/// Kimi k1.5: `−A log_p + (tau / 2) (log r)²`. Kimi Team, "Kimi k1.5", 2025, equation 3.
#[must_use]
pub fn kimi(log_p: &Tensor, log_r: &Tensor, advantage: &Tensor, tau: f64) -> PolicyLoss {
    PolicyLoss { loss: log_r.square() * (tau / 2.0) - advantage * log_p, clipped: none_clipped(advantage) }
}
