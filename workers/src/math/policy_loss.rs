//! Policy losses per token, to be minimised. All tensors are of one shape; the losses take gradients through
//! `log_p` alone.

use tch::Tensor;

use super::ratio::log_ratio;

/// A loss per token, and which tokens the clip holds.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The loss.
    pub loss: Tensor,
    /// Whether the clipped term is in force, so that the token has no gradient. Bool.
    pub clipped: Tensor,
}

/// PPO's clipped surrogate `−min(r A, clip(r, 1 − low, 1 + high) A)` with `r = exp(log_p − log_old)`.
/// Schulman et al., "Proximal Policy Optimization Algorithms", 2017, equation 7; two bounds as in Yu et al.,
/// "DAPO", 2025.
#[must_use]
pub fn ppo_clip(log_p: &Tensor, log_old: &Tensor, advantage: &Tensor, low: f64, high: f64) -> PolicyLoss {
    let ratio = log_ratio(log_p, &log_old.detach()).exp();
    let free = &ratio * advantage;
    let held = ratio.clamp(1.0 - low, 1.0 + high) * advantage;
    PolicyLoss { clipped: free.gt_tensor(&held), loss: -free.minimum(&held) }
}

/// The plain policy gradient `−A log_p`. Williams, "Simple Statistical Gradient-Following Algorithms", 1992.
#[must_use]
pub fn policy_gradient(log_p: &Tensor, advantage: &Tensor) -> PolicyLoss {
    PolicyLoss { loss: -(advantage * log_p), clipped: advantage.zeros_like().to_kind(tch::Kind::Bool) }
}
