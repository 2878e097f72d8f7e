//! Normalised over the batch.

use super::grpo::grpo;

/// REINFORCE++: `(R − mean) / (std + 1e-6)` over all rollouts of the batch, whatever their groups.
/// Hu et al., "REINFORCE++", 2025, section 3.3; without discount every token of a rollout has the
/// same return, and rollouts count alike, however long.
#[must_use]
pub fn reinforce_plus_plus(rewards: &[f64]) -> Vec<f64> {
    // The formula of a group, whose members here are the batch.
    grpo(rewards)
}
