//! Maximum likelihood of success.

use super::{NO_SPREAD, grpo::dr_grpo, mean};

/// MaxRL: `(R − mean) / mean`, for rewards of 0 and more: the rarer the success, the more it
/// counts. Where the mean is not above 1e-6 nothing was reached: zeros. Tajwar et al., "Maximum
/// Likelihood Reinforcement Learning", 2026.
#[must_use]
pub fn max_rl(rewards: &[f64]) -> Vec<f64> {
    let centred = dr_grpo(rewards);
    if rewards.is_empty() || mean(rewards) <= NO_SPREAD {
        return vec![0.0; rewards.len()];
    }
    let mean = mean(rewards);
    centred.into_iter().map(|a| a / mean).collect()
}
