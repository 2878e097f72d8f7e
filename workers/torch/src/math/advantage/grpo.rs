//! Group-relative advantages.

use super::{NO_SPREAD, mean};

/// GRPO: `(R − mean) / (std + 1e-6)` with the sample's standard deviation (n − 1). A group of one,
/// or one whose rewards are all alike, has no signal: zeros. Shao et al., "DeepSeekMath", 2024,
/// section 4.1.2; the standard deviation as in verl and TRL.
#[must_use]
pub fn grpo(rewards: &[f64]) -> Vec<f64> {
    let centred = dr_grpo(rewards);
    if rewards.len() < 2 {
        return centred;
    }
    let squares: f64 = centred.iter().map(|a| a * a).sum();
    let std = (squares / (rewards.len() - 1) as f64).sqrt();
    if std <= NO_SPREAD {
        return vec![0.0; rewards.len()];
    }
    centred.into_iter().map(|a| a / (std + 1e-6)).collect()
}

/// Dr. GRPO: `R − mean`. Its other half, a length normaliser that no single response changes, is
/// the aggregation `seq_mean_token_sum_norm`. Liu et al., "Understanding R1-Zero-Like Training",
/// 2025, section 3.1.
#[must_use]
pub fn dr_grpo(rewards: &[f64]) -> Vec<f64> {
    if rewards.len() < 2 {
        return vec![0.0; rewards.len()];
    }
    let mean = mean(rewards);
    rewards.iter().map(|reward| reward - mean).collect()
}
