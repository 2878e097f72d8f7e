//! The uncertainty of an evaluation: its standard error over distinct prompts, and pass@k if
//! prompts are sampled several times.

use std::collections::BTreeMap;

use millrace_schemas::api::PassAt;
use millrace_schemas::report::clustered_error;
use serde::{Deserialize, Serialize};

use crate::fold::seeds::mix;

/// Counts over the prompts that were played to the end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// By fingerprint of what the policy saw first: rollouts of this prompt, and those of them that
    /// reached the goal.
    pub prompts: BTreeMap<u64, (u32, u32)>,
    /// By k, summed over prompts: the chance that of k rollouts of the prompt at least one reaches
    /// the goal.
    pub pass: BTreeMap<u32, f64>,
}

/// Fingerprint of a prompt: a hash of the first observation's tokens.
#[must_use]
pub fn fingerprint(observation: &[u32]) -> u64 {
    observation.iter().fold(mix(observation.len() as u64), |hash, token| mix(hash ^ u64::from(*token)))
}

/// The k of pass@k for `samples` rollouts of each prompt: powers of two, and all of them. None for
/// one rollout.
fn ks(samples: u32) -> impl Iterator<Item = u32> {
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(move |k| *k < samples);
    powers.chain([samples]).filter(move |_| samples > 1)
}

/// `1 − C(n−c, k) / C(n, k)`: of `n` rollouts `c` reached the goal; the unbiased estimate of the
/// chance that at least one of `k` does (Chen et al. 2021, <https://arxiv.org/abs/2107.03374>,
/// equation 1). As a product, which does not overflow.
#[must_use]
pub fn pass_at(n: u32, c: u32, k: u32) -> f64 {
    if n - c < k {
        return 1.0;
    }
    1.0 - (n - c + 1..=n).map(|i| 1.0 - f64::from(k) / f64::from(i)).product::<f64>()
}

impl Spread {
    /// Counts a prompt of which `rollouts` were played and `solved` of them reached the goal.
    pub fn count(&mut self, fingerprint: u64, rollouts: u32, solved: u32) {
        let prompt = self.prompts.entry(fingerprint).or_default();
        prompt.0 += rollouts;
        prompt.1 += solved;
        for k in ks(rollouts) {
            *self.pass.entry(k).or_default() += pass_at(rollouts, solved, k);
        }
    }

    /// The standard error of the share of rollouts that reached the goal, by [`clustered_error`].
    #[must_use]
    pub fn standard_error(&self) -> Option<f64> {
        clustered_error(self.prompts.values().copied())
    }

    /// Pass@k over `prompts` prompts; empty if each was sampled once.
    #[must_use]
    pub fn pass(&self, prompts: u32) -> Vec<PassAt> {
        let of = |(k, sum): (&u32, &f64)| PassAt { k: *k, success: sum / f64::from(prompts.max(1)) };
        self.pass.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counted over all choices of k of n rollouts.
    fn by_hand(n: u32, c: u32, k: u32) -> f64 {
        let choices = (0u32..1 << n).filter(|choice| choice.count_ones() == k);
        let (hits, all) = choices
            .fold((0, 0), |(hits, all), choice| (hits + u32::from(choice & ((1 << c) - 1) != 0), all + 1));
        f64::from(hits) / f64::from(all)
    }

    #[test]
    fn pass_at_k_is_the_share_of_choices_with_a_success() {
        for n in 1..=8 {
            for (c, k) in (0..=n).flat_map(|c| (1..=n).map(move |k| (c, k))) {
                let (ours, wanted) = (pass_at(n, c, k), by_hand(n, c, k));
                assert!((ours - wanted).abs() < 1e-12, "n={n} c={c} k={k}: {ours} and {wanted}");
            }
        }
        assert!((pass_at(10_000, 1, 5_000) - 0.5).abs() < 1e-9, "large numbers do not overflow");
        assert_eq!(ks(1).count(), 0);
        assert_eq!(ks(6).collect::<Vec<_>>(), [1, 2, 4, 6]);
        assert_eq!(ks(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
    }

    #[test]
    fn the_standard_error_is_that_of_distinct_prompts() {
        let of = |prompts: &[(u64, u32, u32)]| {
            let mut spread = Spread::default();
            prompts.iter().for_each(|(prompt, n, c)| spread.count(*prompt, *n, *c));
            spread.standard_error()
        };
        assert_eq!((of(&[]), of(&[(1, 8, 3)])), (None, None));
        // 3 of 12 prompts: sqrt(p (1 − p) / (n − 1)).
        let plain: Vec<_> = (0..12).map(|prompt| (prompt, 1, u32::from(prompt < 3))).collect();
        let wanted = (0.25f64 * 0.75 / 11.0).sqrt();
        assert!((of(&plain).unwrap() - wanted).abs() < 1e-12);
        // Drawing each three times, or sampling it three times with one result, adds no
        // information.
        let repeated: Vec<_> = plain.iter().chain(&plain).chain(&plain).copied().collect();
        let sampled: Vec<_> = plain.iter().map(|(prompt, _, c)| (*prompt, 3, 3 * c)).collect();
        assert!((of(&repeated).unwrap() - wanted).abs() < 1e-12);
        assert!((of(&sampled).unwrap() - wanted).abs() < 1e-12);
    }
}
