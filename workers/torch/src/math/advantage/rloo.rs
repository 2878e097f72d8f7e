//! Leave-one-out.

use super::grpo::dr_grpo;

/// RLOO: `R − mean of the others`, which is `n / (n − 1)` times Dr. GRPO's. A group of one has
/// no others: zeros. Ahmadian et al., "Back to Basics", 2024, equation 8; Kool et al.,
/// "Buy 4 REINFORCE Samples, Get a Baseline for Free!", 2019.
#[must_use]
pub fn rloo(rewards: &[f64]) -> Vec<f64> {
    let n = rewards.len() as f64;
    // A group of one is 0 by Dr. GRPO already.
    let others = (n - 1.0).max(1.0);
    dr_grpo(rewards).into_iter().map(|a| a * n / others).collect()
}
