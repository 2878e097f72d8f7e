//! How the rewards of a group become advantages.

use millrace_schemas::submit::Advantage;

/// A standard deviation at or below this is none: a group without signal.
pub const NO_SPREAD: f64 = 1e-6;

/// The advantage of each rollout of a group. `rewards` `[G]`, finite; gives `[G]`.
#[must_use]
pub fn advantages(kind: Advantage, rewards: &[f64]) -> Vec<f64> {
    match kind {
        Advantage::Grpo => grpo(rewards),
        Advantage::DrGrpo => dr_grpo(rewards),
    }
}

/// GRPO: `(R − mean) / (std + 1e-6)` with the sample's standard deviation (n − 1). A group of one, or one
/// whose rewards are all alike, has no signal: zeros. Shao et al., "DeepSeekMath", 2024, section 4.1.2; the
/// standard deviation as in verl and TRL.
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

/// Dr. GRPO: `R − mean`. Its other half, a length normaliser that no single response changes, is the
/// aggregation's denominator. Liu et al., "Understanding R1-Zero-Like Training", 2025, section 3.1.
#[must_use]
pub fn dr_grpo(rewards: &[f64]) -> Vec<f64> {
    if rewards.len() < 2 {
        return vec![0.0; rewards.len()];
    }
    let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
    rewards.iter().map(|reward| reward - mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_of_a_group_by_hand() {
        // Mean 0.25, sample variance (0.75² + 3 · 0.25²) / 3 = 0.25.
        let grpo = grpo(&[1.0, 0.0, 0.0, 0.0]);
        let expected = [0.75, -0.25, -0.25, -0.25].map(|a: f64| a / (0.5 + 1e-6));
        assert!(grpo.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-15), "{grpo:?}");
        assert_eq!(dr_grpo(&[1.0, 0.0, 0.0, 0.0]), [0.75, -0.25, -0.25, -0.25]);
    }

    #[test]
    fn a_group_without_spread_has_no_signal_and_no_nan() {
        for rewards in [&[][..], &[3.0], &[1.0; 8], &[0.1, 0.1 + 1e-9]] {
            assert!(grpo(rewards).iter().all(|a| *a == 0.0), "{rewards:?}");
        }
        assert_eq!(dr_grpo(&[0.7]), [0.0]);
    }

    #[test]
    fn advantages_add_up_to_zero_and_do_not_see_an_offset() {
        let rewards = [0.3, 1.7, -2.0, 0.0, 5.5];
        let shifted = rewards.map(|r| r + 100.0);
        for kind in [Advantage::Grpo, Advantage::DrGrpo] {
            let (a, b) = (advantages(kind, &rewards), advantages(kind, &shifted));
            assert!(a.iter().sum::<f64>().abs() < 1e-12);
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-12));
        }
    }
}
