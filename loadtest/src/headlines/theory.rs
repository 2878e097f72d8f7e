//! What theory says of a run: bounds on a step's time, and what trained lengths must look like.
//!
//! The bounds are those of ROLL Flash for N samples a step on K workers, of mean generation μ_g and
//! longest L_g, E epochs of μ_t a sample: `T_sync ≤ (N/K)(μ_g + E μ_t) + L_g` and
//! `T_async ≤ (N/K)(μ_g + E μ_t) + L_g/(α+1)`.
//!
//! Applied to a finite run: K is the number of slots, because each of them samples one rollout at a
//! time; a rollout's time is what it takes at the pace of a full engine, which no slot falls below;
//! μ_g and L_g are the mean and the maximum over all rollouts that were begun; a rollout's own time
//! in its environment is part of L_g and not of μ_g, because it occupies no slot (Graham's bound for
//! chains). The measured time is the mean over the steps measured.

use serde::Serialize;

/// What the bounds are made of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Premises {
    /// Rollouts of a step.
    pub(super) rollouts: f64,
    /// Mean seconds of a slot that a rollout takes.
    pub(super) mean_s: f64,
    /// Seconds of the longest rollout, its environment included.
    pub(super) longest_s: f64,
    /// Slots of a GPU.
    pub(super) slots: f64,
    /// All GPUs, those that generate and those that train.
    pub(super) gpus: f64,
    pub(super) generators: f64,
    pub(super) trainers: f64,
    /// The same GPUs do both, in turn.
    pub(super) in_turn: bool,
    /// GPU-seconds of training a step.
    pub(super) train_gpu_s: f64,
    /// Seconds a step that theory knows nothing of: loading weights, changing over, files.
    pub(super) overhead_s: f64,
    pub(super) alpha: f64,
    /// Steps measured.
    pub(super) steps: f64,
    /// Rollouts wait for each other.
    pub(super) lockstep: bool,
    /// Samples stay with their prompt.
    pub(super) pinned: bool,
    /// Some resets hang.
    pub(super) hangs: bool,
    /// Rollouts that were begun beyond those that were trained on and those in the window.
    pub(super) extra: f64,
}

/// A bound, and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Bound {
    pub(super) name: &'static str,
    pub(super) bound_s: f64,
    pub(super) measured_s: f64,
    /// Why the set-up is not what the bound supposes; `None` where it is.
    pub(super) not_of_this: Option<String>,
}

impl Bound {
    pub(super) fn holds(&self) -> bool {
        self.measured_s <= self.bound_s
    }

    /// A bound that applies and does not hold.
    pub(super) fn is_broken(&self) -> bool {
        self.not_of_this.is_none() && !self.holds()
    }
}

impl Premises {
    /// All bounds of the run.
    pub(super) fn bounds(&self, measured_s: f64) -> Vec<Bound> {
        let of = |name, bound_s, not_of_this| Bound { name, bound_s, measured_s, not_of_this };
        let published = if self.alpha == 0.0 { "published T_sync" } else { "published T_async" };
        vec![
            of(published, self.published_s(), self.not_as_published()),
            of("for this division", self.division_s(), self.not_greedy()),
        ]
    }

    /// `(N/K)(μ_g + E μ_t) + L_g/(α+1)`, and the overhead.
    pub(super) fn published_s(&self) -> f64 {
        let work_s = self.rollouts * self.mean_s / self.slots + self.train_gpu_s;
        work_s / self.gpus + self.longest_s / (self.alpha + 1.0) + self.overhead_s
    }

    /// The same for GPUs that are divided as they are. All that is in flight when a version is
    /// published is finished within `(α+1) N μ_g / K_g + L_g`, then the newest of it is trained on. So
    /// α + 1 steps take at most that and one train step, if training itself is not what takes longest.
    pub(super) fn division_s(&self) -> f64 {
        let train_s = self.train_gpu_s / self.trainers;
        let generate_s = self.rollouts * self.mean_s / (self.slots * self.generators);
        if self.alpha == 0.0 {
            return generate_s + self.longest_s + train_s + self.overhead_s;
        }
        let steps = self.alpha + 1.0;
        let windows = (self.steps / steps).ceil();
        let in_window_s = steps * (generate_s + self.overhead_s) + self.longest_s + train_s;
        (windows * in_window_s / self.steps).max(train_s + self.overhead_s)
    }

    /// `β* = E N μ_t / (N μ_g + K L_g/(α+1) + E N μ_t)`: the share of GPUs that should train.
    pub(super) fn best_share(&self) -> f64 {
        let work = self.rollouts * self.mean_s / self.slots;
        let waits = self.gpus * self.longest_s / (self.alpha + 1.0);
        self.train_gpu_s / (work + waits + self.train_gpu_s)
    }

    fn not_as_published(&self) -> Option<String> {
        if let Some(why) = self.not_greedy() {
            return Some(why);
        }
        if self.alpha == 0.0 {
            let why = "it supposes that all GPUs generate and then all train; here they are divided";
            return (!self.in_turn).then(|| why.to_owned());
        }
        let (share, best) = (self.trainers / self.gpus, self.best_share());
        if (share - best).abs() * self.gpus >= 1.0 {
            return Some(format!(
                "it supposes perfect balance, β* = {best:.2} of the GPUs training; here it is {share:.2}"
            ));
        }
        let train_s = self.train_gpu_s / self.trainers;
        Some(format!(
            "it supposes that a batch leaves the window when its training begins; here it does when its \
             version is published, which may add {:.1} s a step",
            train_s / (self.alpha + 1.0)
        ))
    }

    fn not_greedy(&self) -> Option<String> {
        if self.lockstep {
            return Some(
                "it supposes that no slot waits while there is work; here rollouts wait for each other"
                    .into(),
            );
        }
        if self.pinned {
            return Some(
                "it supposes that any slot takes any sample; here samples stay with their prompt".into(),
            );
        }
        if self.hangs {
            return Some("it supposes that an environment takes its own time; here some resets hang".into());
        }
        (self.extra > 0.0).then(|| {
            format!(
                "it supposes that whatever was begun is trained on; here {:.0} rollouts more were begun",
                self.extra
            )
        })
    }
}

/// The two-sample Kolmogorov–Smirnov test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct SameDistribution {
    /// The greatest distance between the two empirical distribution functions, 0 to 1.
    pub(super) distance: f64,
    /// The probability of such a distance, or a greater one, between samples of one distribution.
    pub(super) p: f64,
    /// How large the samples are.
    pub(super) sizes: (usize, usize),
    /// How many of the first sample are as long as the longest hundredth of the other, over how many
    /// there should be. The distance above does not see so thin a tail.
    pub(super) tail: f64,
    /// The same difference in standard deviations.
    pub(super) tail_sigmas: f64,
}

/// The share of a sample that is its tail.
const TAIL: f64 = 0.01;
/// Beyond as many standard deviations samples count as of different tails.
pub(super) const MOST_SIGMAS: f64 = 3.5;

/// Below this probability samples count as of different distributions.
pub(super) const LEAST_P: f64 = 0.001;

impl SameDistribution {
    /// Compares two samples. The probability is Kolmogorov's limit with Stephens's correction, as in
    /// Numerical Recipes, 14.3.
    pub(super) fn of(mut one: Vec<f64>, mut other: Vec<f64>) -> Self {
        one.sort_unstable_by(f64::total_cmp);
        other.sort_unstable_by(f64::total_cmp);
        let sizes = (one.len(), other.len());
        let share = |sample: &[f64], value: f64| {
            sample.partition_point(|x| *x <= value) as f64 / sample.len().max(1) as f64
        };
        let distance = one
            .iter()
            .chain(&other)
            .map(|value| (share(&one, *value) - share(&other, *value)).abs())
            .fold(0.0, f64::max);
        let n = (sizes.0 * sizes.1) as f64 / (sizes.0 + sizes.1).max(1) as f64;
        let root = n.sqrt();
        let rank = (sizes.1 as f64 * (1.0 - TAIL)) as usize;
        let threshold = other.get(rank).copied().unwrap_or(f64::INFINITY);
        let of_tail = |sample: &[f64]| (sample.len() - sample.partition_point(|x| *x < threshold)) as f64;
        let expected = of_tail(&other) / sizes.1.max(1) as f64 * sizes.0 as f64;
        let (found, deviation) = (of_tail(&one), (expected * (1.0 - TAIL)).sqrt().max(1.0));
        Self {
            distance,
            p: survival((root + 0.12 + 0.11 / root) * distance),
            sizes,
            tail: found / expected.max(1.0),
            tail_sigmas: (found - expected) / deviation,
        }
    }

    pub(super) fn is_refused(&self) -> bool {
        self.p < LEAST_P || self.tail_sigmas.abs() > MOST_SIGMAS
    }
}

/// `2 Σ (−1)^(k−1) exp(−2 k² λ²)` over k from 1.
fn survival(lambda: f64) -> f64 {
    if lambda < 0.2 {
        return 1.0;
    }
    let term = |k: i32| {
        let sign = if k % 2 == 1 { 2.0 } else { -2.0 };
        sign * (-2.0 * f64::from(k * k) * lambda * lambda).exp()
    };
    (1..=100).map(term).sum::<f64>().clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::draw::Draw;
    use super::*;

    fn lengths(seed: u64, count: usize) -> Vec<f64> {
        let draw = Draw::LogNormal { median: 1_000.0, sigma: 1.0, most: 32_768.0 };
        (0..count).map(|n| draw.of(seed, &n.to_string())).collect()
    }

    #[test]
    fn a_sample_without_the_longest_is_refused_and_an_honest_one_is_not() {
        let honest = SameDistribution::of(lengths(1, 4_000), lengths(2, 4_000));
        assert!(!honest.is_refused(), "{honest:?}");
        let mut biased = lengths(1, 4_000);
        biased.sort_unstable_by(f64::total_cmp);
        biased.truncate(3_600);
        let biased = SameDistribution::of(biased, lengths(1, 4_000));
        assert!(biased.is_refused() && (biased.distance - 0.1).abs() < 0.001, "{biased:?}");
    }

    #[test]
    fn a_tail_that_was_dropped_is_found_where_the_distance_is_small() {
        let mut biased = lengths(1, 4_000);
        biased.sort_unstable_by(f64::total_cmp);
        biased.truncate(3_960);
        let biased = SameDistribution::of(biased, lengths(2, 4_000));
        assert!(biased.p > LEAST_P && biased.tail < 0.3 && biased.is_refused(), "{biased:?}");
    }

    #[test]
    fn the_probability_is_kolmogorovs() {
        // Smirnov's table of 1948: 1.36 is the 5 % point, 1.63 the 1 % point.
        assert!((survival(1.36) - 0.05).abs() < 0.001);
        assert!((survival(1.63) - 0.01).abs() < 0.001);
    }

    #[test]
    fn at_the_best_share_the_published_bound_is_the_train_step() {
        let mut premises = Premises {
            rollouts: 2_048.0,
            mean_s: 40.0,
            longest_s: 400.0,
            slots: 16.0,
            gpus: 128.0,
            generators: 64.0,
            trainers: 64.0,
            in_turn: false,
            train_gpu_s: 10_000.0,
            overhead_s: 0.0,
            alpha: 2.0,
            steps: 9.0,
            lockstep: false,
            pinned: false,
            hangs: false,
            extra: 0.0,
        };
        premises.trainers = premises.best_share() * 128.0;
        let train_s = premises.train_gpu_s / premises.trainers;
        assert!((premises.published_s() - train_s).abs() < 1e-9);
    }
}
