//! KL divergence of a policy from a reference, as a term of the loss or of the reward.

use millrace_schemas::submit::{Kl, KlEstimator};
use tch::Tensor;

use super::ratio::log_ratio;

/// The estimate of KL(p ‖ ref) from each token that p drew: d, d² / 2 or e^−d − 1 + d with `d =
/// log_p − log_ref`. Gradients go through `log_p`. Schulman, "Approximating KL Divergence", 2020.
pub fn kl(estimator: KlEstimator, log_p: &Tensor, log_ref: &Tensor) -> Tensor {
    let d = log_ratio(log_p, &log_ref.detach());
    match estimator {
        KlEstimator::K1 => d,
        KlEstimator::K2 => d.square() / 2.0,
        KlEstimator::K3 => (-&d).exp() - 1.0 + d,
    }
}

/// The KL metrics of the step before.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LastStep {
    /// The coefficient that was in force.
    pub coefficient: f64,
    /// The mean KL divergence from the reference, in nats per token.
    pub distance: f64,
    /// Rollouts trained on.
    pub rollouts: f64,
}

/// The coefficient of the next step: `c · (1 + clip(distance / target − 1, ±0.2) · rollouts /
/// horizon)` where it adapts, never below 0. Ziegler et al., "Fine-Tuning Language Models from
/// Human Preferences", 2019, section 2.2.
#[must_use]
pub fn coefficient(kl: &Kl, before: Option<LastStep>) -> f64 {
    let (Some(adapt), Some(last)) = (kl.adapt, before) else { return kl.coefficient };
    let error = (last.distance / adapt.target - 1.0).clamp(-0.2, 0.2);
    (last.coefficient * (1.0 + error * last.rollouts / adapt.horizon as f64)).max(0.0)
}

#[cfg(test)]
mod tests {
    use millrace_schemas::submit::{KlEstimator, KlTarget};

    use super::*;

    #[test]
    fn the_coefficient_follows_the_distance() {
        let adapt = Some(KlTarget { target: 0.1, horizon: 1_000 });
        let kl = Kl { adapt, ..Kl::of_loss(0.5, KlEstimator::K3) };
        let after =
            |distance| coefficient(&kl, Some(LastStep { coefficient: 0.25, distance, rollouts: 100.0 }));
        assert_eq!(coefficient(&kl, None), 0.5);
        assert_eq!(after(0.1), 0.25);
        assert!((after(0.11) - 0.25 * 1.01).abs() < 1e-12);
        // However far, a step changes it by a fifth of its rollouts over the horizon.
        assert!((after(9.0) - 0.25 * 1.02).abs() < 1e-12);
        assert!((after(-9.0) - 0.25 * 0.98).abs() < 1e-12);
        let fixed = Kl::of_loss(0.5, KlEstimator::K3);
        assert_eq!(
            coefficient(&fixed, Some(LastStep { coefficient: 0.25, distance: 9.0, rollouts: 1.0 })),
            0.5
        );
    }
}
