//! Sums over the tokens of a step, kept on the device until its end.

use std::collections::BTreeMap;

use tch::{Device, Kind, Tensor};

use crate::math::drift;

/// Sums besides those of [`drift`]: tokens, loss, entropy, clipped.
const OWN: i64 = 4;

/// The sums of all passes of a step.
#[derive(Debug)]
pub(super) struct Tally {
    /// `[OWN + 2 * drift::SUMS]` of f64.
    sums: Tensor,
}

/// Per token of one forward, without gradient.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) loss: &'a Tensor,
    pub(super) entropy: &'a Tensor,
    pub(super) clipped: &'a Tensor,
    pub(super) log_p: &'a Tensor,
    pub(super) old: &'a Tensor,
    pub(super) behaviour: &'a Tensor,
    pub(super) mask: &'a Tensor,
}

impl Tally {
    pub(super) fn new(device: Device) -> Self {
        Self { sums: Tensor::zeros([OWN + 2 * drift::SUMS], (Kind::Double, device)) }
    }

    /// Adds the tokens of one forward.
    pub(super) fn add(&mut self, seen: &Seen<'_>) {
        let mask = seen.mask.to_kind(Kind::Double);
        let rows = [&mask.ones_like(), seen.loss, seen.entropy, seen.clipped];
        let rows = rows.map(|row| row.detach().to_kind(Kind::Double).view([-1]));
        let own = Tensor::stack(&rows, 0).matmul(&mask.view([-1]));
        let policy = drift::sums(seen.log_p, seen.behaviour, seen.mask);
        let old = drift::sums(seen.old, seen.behaviour, seen.mask);
        self.sums += Tensor::cat(&[own, policy, old], 0);
    }

    /// The sums, to be added up over the gang.
    pub(super) fn tensor(&mut self) -> &mut Tensor {
        &mut self.sums
    }

    /// Means over tokens and passes. What [`drift`] reports compares the policy in training with the one that
    /// sampled; after `old_`, the policy that ratios are taken against.
    pub(super) fn report(&self) -> BTreeMap<String, f64> {
        let sums = Vec::<f64>::try_from(&self.sums).expect("one axis of f64");
        let tokens = sums[0].max(1.0);
        let mut metrics: BTreeMap<String, f64> = ["loss", "entropy", "clip_share"]
            .iter()
            .zip(&sums[1..])
            .map(|(name, sum)| ((*name).to_owned(), sum / tokens))
            .collect();
        let (policy, old) = sums[OWN as usize..].split_at(drift::SUMS as usize);
        drift::report("", policy, tokens, &mut metrics);
        drift::report("old_", old, tokens, &mut metrics);
        metrics
    }
}
