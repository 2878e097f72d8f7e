//! The clipped surrogate.

use tch::Tensor;

use super::PolicyLoss;

/// How far a ratio counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// It is clipped below at 1 minus this.
    pub low: f64,
    /// It is clipped above at 1 plus this.
    pub high: f64,
    /// For a negative advantage it counts at most this; 0 for no bound.
    pub dual: f64,
}

/// PPO's clipped surrogate `−min(r A, clip(r, 1 − low, 1 + high) A)` from `log_r = log r`, with
/// gradient. Schulman et al., "Proximal Policy Optimization Algorithms", 2017, equation 7; two
/// bounds as in Yu et al., "DAPO", 2025. With `dual` the objective of a negative advantage is not
/// below `dual · A`: Ye et al., "Mastering Complex Control in MOBA Games with Deep Reinforcement
/// Learning", 2020, equation 5.
#[must_use]
pub fn ppo_clip(log_r: &Tensor, advantage: &Tensor, bounds: Bounds) -> PolicyLoss {
    let ratio = log_r.exp();
    let free = &ratio * advantage;
    let bounded = ratio.clamp(1.0 - bounds.low, 1.0 + bounds.high) * advantage;
    let (mut clipped, mut objective) = (free.gt_tensor(&bounded), free.minimum(&bounded));
    if bounds.dual > 0.0 {
        let least = advantage * bounds.dual;
        let below = advantage.lt(0.0).logical_and(&objective.lt_tensor(&least));
        objective = least.where_self(&below, &objective);
        clipped = clipped.logical_or(&below);
    }
    PolicyLoss { clipped, loss: -objective }
}
