//! Credit by tokens, with a critic's values.

/// Of each token `A_t = δ_t + discount · lambda · A_{t+1}` with `δ_t = r_t + discount · V_{t+1} −
/// V_t`, and nothing after the last: Schulman et al., "High-Dimensional Continuous Control Using
/// Generalized Advantage Estimation", 2016, equation 16. `rewards` and `values` have the same
/// length. A_t + V_t is the return that the critic should predict.
#[must_use]
pub fn gae(discount: f64, lambda: f64, rewards: &[f64], values: &[f64]) -> Vec<f64> {
    let (mut advantages, mut later, mut next) = (vec![0.0; rewards.len()], 0.0, 0.0);
    for ((advantage, reward), value) in advantages.iter_mut().zip(rewards).zip(values).rev() {
        later = reward + discount * next - value + discount * lambda * later;
        (*advantage, next) = (later, *value);
    }
    advantages
}

/// Spreads the rewards of turns over tokens: a turn's reward goes to its last token. That of a turn
/// without tokens goes to the token before it, or else to the first.
#[must_use]
pub fn token_rewards(lengths: &[usize], rewards: &[f64]) -> Vec<f64> {
    let mut tokens = vec![0.0; lengths.iter().sum()];
    let mut end = 0;
    for (length, reward) in lengths.iter().zip(rewards) {
        end += length;
        if let Some(last) = tokens.get_mut(end.saturating_sub(1)) {
            *last += reward;
        }
    }
    tokens
}
