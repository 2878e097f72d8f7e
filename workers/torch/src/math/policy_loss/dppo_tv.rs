//! A trust region in probabilities.

use tch::Tensor;

use super::PolicyLoss;
use crate::math::ratio::log_ratio;

/// DPPO-TV: `−A p / m + pull (log p − log m)²`, its first part only for tokens whose probability
/// has not moved by more than `delta` in the advantage's direction. Always against the policy that
/// sampled. Qi et al., "Rethinking the Trust Region in LLM Reinforcement Learning", 2026.
#[must_use]
pub fn dppo_tv(log_p: &Tensor, log_m: &Tensor, advantage: &Tensor, (delta, pull): (f64, f64)) -> PolicyLoss {
    let log_m = log_m.detach();
    let log_r = log_ratio(log_p, &log_m);
    let moved = (log_p.exp() - log_m.exp()).detach();
    let clipped = (moved * advantage.sign()).gt(delta);
    let free = (log_r.exp() * advantage).masked_fill(&clipped, 0.0);
    PolicyLoss { loss: log_r.square() * pull - free, clipped }
}
