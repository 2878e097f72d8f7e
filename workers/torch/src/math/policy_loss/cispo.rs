//! A clipped weight that leaves every token its gradient.

use tch::Tensor;

use super::{PolicyLoss, ppo_clip::Bounds};

/// CISPO: `−sg(clip(r, 1 − low, 1 + high)) A log_p`, with `sg` for no gradient. MiniMax,
/// "MiniMax-M1", 2025, equations 4 and 5.
#[must_use]
pub fn cispo(log_p: &Tensor, log_r: &Tensor, advantage: &Tensor, bounds: Bounds) -> PolicyLoss {
    let ratio = log_r.detach().exp();
    let weight = ratio.clamp(1.0 - bounds.low, 1.0 + bounds.high);
    PolicyLoss { clipped: weight.ne_tensor(&ratio), loss: -(weight * advantage * log_p) }
}
