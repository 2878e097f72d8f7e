//! The plain policy gradient.

use tch::Tensor;

use super::{PolicyLoss, none_clipped};

/// `−A log_p`. Williams, "Simple Statistical Gradient-Following Algorithms", 1992.
#[must_use]
pub fn policy_gradient(log_p: &Tensor, advantage: &Tensor) -> PolicyLoss {
    PolicyLoss { loss: -(advantage * log_p), clipped: none_clipped(advantage) }
}
