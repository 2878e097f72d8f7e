//! Corrections for samples of a policy that is not the old one: weights and rejections of tokens,
//! before training.

use millrace_schemas::submit::{Correction, CorrectionWeight, Rejection};

use super::spans;

/// Weights and mask of a rollout's tokens, R of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Corrected {
    /// Multiplies the policy's loss, without gradient. `[R]`
    pub weights: Vec<f64>,
    /// Whether the token counts at all. `[R]`
    pub kept: Vec<bool>,
}

/// Corrects a rollout whose tokens have these log-ratios `log ρ = log p_old − log p_behaviour`, in
/// turns of these lengths, which add up.
///
/// Truncated importance sampling, by token: Espeholt et al., "IMPALA", 2018, and Yao et al., "Your
/// Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025; without a cap the
/// weight of decoupled PPO: Hilton et al., "Batch size-invariance for policy optimization", 2022.
/// By sequence, masked importance sampling, rejection by the geometric mean and the veto: Liu et
/// al., "When Speed Kills Stability", 2025. By turn: the masks of IPA, Wang et al., "Let It Flow"
/// (ROME), 2025. Rejection by token, with the token's own weight and no cap: IcePop, Ling Team,
/// "Every Step Evolves", 2025.
#[must_use]
pub fn correct(correction: &Correction, log_ratios: &[f64], turns: &[usize]) -> Corrected {
    let whole = [log_ratios.len()];
    let product = spans::product(log_ratios);
    let cut = |weight: f64| if correction.cap > 0.0 { weight.min(correction.cap) } else { weight };
    let each =
        |log_ratios: &[f64]| log_ratios.iter().map(|log_ratio| cut(spans::ratio(*log_ratio))).collect();
    let weights = match correction.weight {
        CorrectionWeight::None => vec![1.0; log_ratios.len()],
        CorrectionWeight::Token => each(log_ratios),
        CorrectionWeight::Turn => each(&spans::means(log_ratios, turns)),
        CorrectionWeight::Sequence => vec![cut(product); log_ratios.len()],
    };
    let (low, high) = correction.bounds();
    let inside = |ratio: f64| (low..=high).contains(&ratio);
    let means = |lengths: &[usize]| -> Vec<bool> {
        let means = spans::means(log_ratios, lengths);
        means.into_iter().map(|mean| inside(spans::ratio(mean))).collect()
    };
    let mut kept = match correction.reject {
        Rejection::None => vec![true; log_ratios.len()],
        Rejection::Token => log_ratios.iter().map(|log_ratio| inside(spans::ratio(*log_ratio))).collect(),
        Rejection::Sequence => vec![inside(product); log_ratios.len()],
        Rejection::Geometric => means(&whole),
        Rejection::Turn => means(turns),
    };
    if correction.veto > 0.0 && log_ratios.iter().any(|log_ratio| spans::ratio(*log_ratio) < correction.veto)
    {
        kept.fill(false);
    }
    Corrected { weights, kept }
}
