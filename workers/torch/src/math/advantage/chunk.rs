//! Credit by turns.

/// `G_k = r_k + discount · G_{k+1}`, from the last turn to the first: the discounted return. Every
/// token of a turn has its turn's. Wang et al., "Let It Flow" (ROME), 2025,
/// the chunk-level returns of IPA.
#[must_use]
pub fn returns(discount: f64, rewards: &[f64]) -> Vec<f64> {
    let mut returns = rewards.to_vec();
    for turn in (1..returns.len()).rev() {
        returns[turn - 1] += discount * returns[turn];
    }
    returns
}
