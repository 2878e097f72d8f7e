//! The best of a group.

use super::NO_SPREAD;

/// RAFT: 1 for the rollouts that have the group's best reward, 0 for the others, which are not
/// trained on. Where all are alike none is better than another: zeros. Dong et al., "RAFT: Reward
/// rAnked FineTuning", 2023.
#[must_use]
pub fn raft(rewards: &[f64]) -> Vec<f64> {
    let best = rewards.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let worst = rewards.iter().copied().fold(f64::INFINITY, f64::min);
    if best - worst <= NO_SPREAD {
        return vec![0.0; rewards.len()];
    }
    rewards.iter().map(|reward| f64::from(u8::from(*reward >= best))).collect()
}
