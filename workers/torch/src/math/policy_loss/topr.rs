//! Tapered weights for negative advantages.

use tch::{Kind, Tensor};

use super::PolicyLoss;

/// TOPR: `−A log_p` where the advantage is positive, else `−sg(clip(r, 0, 1)) A log_p`. The sign is
/// the advantage's, not that of the raw score. Le Roux et al., "Tapered Off-Policy REINFORCE",
/// 2025, equation 8, where r is the trajectory's; here the token's, or the geometric mean of its
/// turn's: IPA, Wang et al., "Let It Flow" (ROME), 2025.
#[must_use]
pub fn topr(log_p: &Tensor, log_r: &Tensor, advantage: &Tensor) -> PolicyLoss {
    let (ratio, worse) = (log_r.detach().exp(), advantage.le(0.0));
    let weight = ratio.clamp_max(1.0).where_self(&worse, &ratio.ones_like());
    let clipped = ratio.gt(1.0).logical_and(&worse).to_kind(Kind::Bool);
    PolicyLoss { clipped, loss: -(weight * advantage * log_p) }
}
