//! Step metrics: sums over the tokens of a step, kept on the device until its end.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use super::pack::LossInputs;
use super::per_token::PerToken;
use crate::math::drift;
use crate::math::spans::Spans;

/// Sums besides those of [`drift`]: tokens, entropy, clipped, rejected, distance from the
/// reference; the loss, and the critic's.
const OWN: i64 = 7;
/// Rollouts, and the sums for their χ²: under the current policy, and under the old one.
const ROLLOUTS: i64 = 3;
/// Of on-policy tokens, before the first update: how many, and `Σ |Δ|`.
const ON_POLICY: i64 = 2;
/// All sums over tokens and rollouts.
const KNOWN: i64 = OWN + 2 * drift::SUMS + ROLLOUTS;

/// The sums of all passes of a step.
#[derive(Debug)]
pub(super) struct StepMetrics {
    /// `[KNOWN + ON_POLICY + world]` of f64; the tail is each member's largest `|Δ|` of on-policy
    /// tokens.
    sums: Tensor,
    rank: i64,
    /// No update was made yet, so sampler and trainer have the same weights.
    pub(super) before_updates: bool,
    with: Beside,
}

/// Models besides the policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct Beside {
    pub(super) reference: bool,
    pub(super) critic: bool,
}

/// Losses and their inputs per token, `[M]` each, without gradient.
#[derive(Debug)]
pub(super) struct TokenLosses {
    /// Including the entropy bonus.
    pub(super) loss: Tensor,
    pub(super) entropy: Tensor,
    pub(super) clipped: Tensor,
    pub(super) distance: Option<Tensor>,
    pub(super) log_p: Tensor,
    /// The log-probability that ratios are taken against.
    pub(super) old: Tensor,
}

impl TokenLosses {
    /// Parts of a forward, one after another.
    pub(super) fn cat(parts: &[Self]) -> Self {
        let all = |of: fn(&Self) -> &Tensor| Tensor::cat(&parts.iter().map(of).collect::<Vec<_>>(), 0);
        let distances: Vec<&Tensor> = parts.iter().filter_map(|part| part.distance.as_ref()).collect();
        Self {
            loss: all(|part| &part.loss),
            entropy: all(|part| &part.entropy),
            clipped: all(|part| &part.clipped),
            distance: (!distances.is_empty()).then(|| Tensor::cat(&distances, 0)),
            log_p: all(|part| &part.log_p),
            old: all(|part| &part.old),
        }
    }
}

impl StepMetrics {
    pub(super) fn new(device: Device, (rank, world): (i64, i64), with: Beside) -> Self {
        let sums = Tensor::zeros([KNOWN + ON_POLICY + world], (Kind::Double, device));
        Self { sums, rank, before_updates: true, with }
    }

    /// Adds the tokens of one forward, whose rollouts have these lengths. `value_loss` `[M]` is the
    /// critic's, if there is one.
    pub(super) fn add(
        &mut self,
        seen: &TokenLosses,
        value_loss: Option<&Tensor>,
        inputs: &LossInputs,
        rollouts: &[usize],
    ) {
        let LossInputs { tokens: PerToken { mask, behaviour, on_policy, .. }, share, .. } = inputs;
        let mask = mask.to_kind(Kind::Double);
        let every = mask.ones_like();
        let given = |row: Option<&Tensor>| row.map_or_else(|| mask.zeros_like(), Tensor::shallow_clone);
        let (distance, value_loss) = (given(seen.distance.as_ref()), given(value_loss));
        let clipped = &seen.clipped.to_kind(Kind::Double) * &mask;
        let [loss, value_loss] =
            [&seen.loss, &value_loss].map(|loss| loss.to_kind(Kind::Double) * &mask * share);
        let rows = [&every, &seen.entropy, &clipped, &(1.0 - &mask), &distance, &loss, &value_loss];
        let rows = rows.map(|row| row.detach().to_kind(Kind::Double).view([-1]));
        let own = Tensor::stack(&rows, 0).matmul(&every);
        let spans = Spans::new(rollouts, mask.device());
        let of_rollouts = Tensor::stack(
            &[
                Tensor::from(rollouts.len() as f64).to_device(mask.device()),
                drift::squared_products(&seen.log_p, behaviour, &spans),
                drift::squared_products(&seen.old, behaviour, &spans),
            ],
            0,
        );
        let drifts = [&seen.log_p, &seen.old].map(|log_x| drift::sums(log_x, behaviour, &every));
        let mut sums = self.sums.narrow(0, 0, KNOWN);
        sums += Tensor::cat(&[&own, &drifts[0], &drifts[1], &of_rollouts], 0);
        if self.before_updates {
            let on_policy = every * on_policy;
            let off = (&seen.log_p - behaviour).abs().to_kind(Kind::Double) * &on_policy;
            let mut sums = self.sums.narrow(0, KNOWN, ON_POLICY);
            sums += Tensor::stack(&[on_policy.sum(Kind::Double), off.sum(Kind::Double)], 0);
            let largest = self.sums.narrow(0, KNOWN + ON_POLICY + self.rank, 1);
            largest.shallow_clone().copy_(&largest.maximum(&off.max().view([1])));
        }
    }

    /// The sums, to be added up over the gang.
    pub(super) fn tensor(&mut self) -> &mut Tensor {
        &mut self.sums
    }

    /// Means over tokens and passes; the losses are means over these `updates`. The metrics of
    /// [`drift`] compare the current policy with the behaviour policy; with the prefix `old_`, the
    /// old policy. `sequence_chi2` is that of whole rollouts. `sampler_trainer_drift` and `…_max`
    /// are the mean and the largest `|Δ|` of on-policy tokens: the difference between engine and
    /// trainer.
    pub(super) fn report(&self, updates: f64) -> BTreeMap<String, f64> {
        let sums = Vec::<f64>::try_from(&self.sums).expect("one axis of f64");
        let (own, rest) = sums.split_at(OWN as usize);
        let (policy, rest) = rest.split_at(drift::SUMS as usize);
        let (old, rest) = rest.split_at(drift::SUMS as usize);
        let (of_rollouts, rest) = rest.split_at(ROLLOUTS as usize);
        let (on_policy, largest) = rest.split_at(ON_POLICY as usize);
        let tokens = own[0].max(1.0);
        let mut metrics: BTreeMap<String, f64> = ["entropy", "clip_share", "rejected_share", "kl"]
            .iter()
            .zip(&own[1..])
            .filter(|(name, _)| **name != "kl" || self.with.reference)
            .map(|(name, sum)| ((*name).to_owned(), sum / tokens))
            .collect();
        metrics.insert("loss".to_owned(), own[OWN as usize - 2] / updates.max(1.0));
        if self.with.critic {
            metrics.insert("value_loss".to_owned(), own[OWN as usize - 1] / updates.max(1.0));
        }
        drift::report("", policy, tokens, &mut metrics);
        drift::report("old_", old, tokens, &mut metrics);
        for (name, squares) in ["sequence_chi2", "old_sequence_chi2"].iter().zip(&of_rollouts[1..]) {
            metrics.insert((*name).to_owned(), squares / of_rollouts[0].max(1.0) - 1.0);
        }
        if on_policy[0] > 0.0 {
            let largest = largest.iter().copied().fold(0.0, f64::max);
            metrics.insert("sampler_trainer_drift".to_owned(), on_policy[1] / on_policy[0]);
            metrics.insert("sampler_trainer_drift_max".to_owned(), largest);
        }
        metrics
    }
}
