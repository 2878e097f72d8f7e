//! The critic's loss.

use tch::Tensor;

/// `½ max((V − R)², (V_old + clip(V − V_old, ±bound) − R)²)` per token, to be minimised; without a
/// bound, which is 0, the first alone. Schulman et al., "Proximal Policy Optimization Algorithms",
/// 2017, bounded as their program has it. All of one shape; the gradient goes through `value`
/// alone.
pub fn value_loss(value: &Tensor, old: &Tensor, returns: &Tensor, bound: f64) -> Tensor {
    let (old, returns) = (old.detach(), returns.detach());
    let plain = (value - &returns).square();
    let loss = if bound > 0.0 {
        let bounded = (value - &old).clamp(-bound, bound) + &old;
        plain.maximum(&(bounded - &returns).square())
    } else {
        plain
    };
    loss * 0.5
}
