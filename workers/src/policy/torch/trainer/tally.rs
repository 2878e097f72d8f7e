//! Sums over the tokens of a step, kept on the device until its end.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use super::pack::Sampled;
use crate::math::drift;

/// Sums besides those of [`drift`]: tokens, loss, entropy, clipped, distance from the reference.
const OWN: i64 = 5;
/// Of tokens that the version trained on sampled, before the first update: how many, and `Σ |Δ|`.
const FRESH: i64 = 2;

/// The sums of all passes of a step.
#[derive(Debug)]
pub(super) struct Tally {
    /// `[OWN + 2 * drift::SUMS + FRESH + world]` of f64; at the end each member's largest `|Δ|` of fresh tokens.
    sums: Tensor,
    rank: i64,
    /// No update was made yet: sampler and trainer have the same weights.
    pub(super) before_updates: bool,
    /// There is a reference model.
    referred: bool,
}

/// Per token, without gradient.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) loss: &'a Tensor,
    pub(super) entropy: &'a Tensor,
    pub(super) clipped: &'a Tensor,
    pub(super) distance: Option<&'a Tensor>,
    pub(super) log_p: &'a Tensor,
    pub(super) part: &'a Sampled,
}

impl Tally {
    pub(super) fn new(device: Device, (rank, world): (i64, i64), referred: bool) -> Self {
        let sums = Tensor::zeros([OWN + 2 * drift::SUMS + FRESH + world], (Kind::Double, device));
        Self { sums, rank, before_updates: true, referred }
    }

    /// Adds the tokens of one forward.
    pub(super) fn add(&mut self, seen: &Seen<'_>) {
        let Sampled { mask, behaviour, old, fresh, .. } = seen.part;
        let mask = mask.to_kind(Kind::Double);
        let none = mask.zeros_like();
        let rows = [&mask.ones_like(), seen.loss, seen.entropy, seen.clipped, seen.distance.unwrap_or(&none)];
        let rows = rows.map(|row| row.detach().to_kind(Kind::Double).view([-1]));
        let own = Tensor::stack(&rows, 0).matmul(&mask.view([-1]));
        let policy = drift::sums(seen.log_p, behaviour, &mask);
        let old = drift::sums(old, behaviour, &mask);
        let known = OWN + 2 * drift::SUMS;
        let mut sums = self.sums.narrow(0, 0, known);
        sums += Tensor::cat(&[own, policy, old], 0);
        if self.before_updates {
            let fresh = mask * fresh;
            let off = (seen.log_p - behaviour).abs().to_kind(Kind::Double) * &fresh;
            let mut sums = self.sums.narrow(0, known, FRESH);
            sums += Tensor::stack(&[fresh.sum(Kind::Double), off.sum(Kind::Double)], 0);
            let largest = self.sums.narrow(0, known + FRESH + self.rank, 1);
            largest.shallow_clone().copy_(&largest.maximum(&off.max().view([1])));
        }
    }

    /// The sums, to be added up over the gang.
    pub(super) fn tensor(&mut self) -> &mut Tensor {
        &mut self.sums
    }

    /// Means over tokens and passes. What [`drift`] reports compares the policy in training with the one that
    /// sampled; after `old_`, the policy that ratios are taken against. `sampler_trainer_drift` and `…_max` are the mean
    /// and the largest `|Δ|` of tokens that this very version sampled: what engine and trainer compute differently.
    pub(super) fn report(&self) -> BTreeMap<String, f64> {
        let sums = Vec::<f64>::try_from(&self.sums).expect("one axis of f64");
        let tokens = sums[0].max(1.0);
        let mut metrics: BTreeMap<String, f64> = ["loss", "entropy", "clip_share", "kl"]
            .iter()
            .zip(&sums[1..])
            .filter(|(name, _)| **name != "kl" || self.referred)
            .map(|(name, sum)| ((*name).to_owned(), sum / tokens))
            .collect();
        let (policy, rest) = sums[OWN as usize..].split_at(drift::SUMS as usize);
        let (old, fresh) = rest.split_at(drift::SUMS as usize);
        drift::report("", policy, tokens, &mut metrics);
        drift::report("old_", old, tokens, &mut metrics);
        let (fresh, largest) = fresh.split_at(FRESH as usize);
        if fresh[0] > 0.0 {
            let largest = largest.iter().copied().fold(0.0, f64::max);
            metrics.insert("sampler_trainer_drift".to_owned(), fresh[1] / fresh[0]);
            metrics.insert("sampler_trainer_drift_max".to_owned(), largest);
        }
        metrics
    }
}
