//! Centred on the group, scaled by the batch.

use super::NO_SPREAD;
use super::grpo::dr_grpo;
use super::normalise::Moments;

/// LitePPO: `(R − mean of the group) / (std of the batch + 1e-6)`, the standard deviation of the
/// batch's rewards as they are, n − 1. A batch without spread has no signal: zeros. Liu et al.,
/// "Tricks or Traps? A Deep Dive into RL for LLM Reasoning", 2025, section 6. `[B][G]`
#[must_use]
pub fn lite_ppo(groups: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let std = Moments::of(groups.iter().flatten().copied()).std();
    let scaled = |centred: f64| if std <= NO_SPREAD { 0.0 } else { centred / (std + 1e-6) };
    groups.iter().map(|group| dr_grpo(group).into_iter().map(scaled).collect()).collect()
}
