//! Rewards and advantages, centred and scaled.

use std::collections::BTreeMap;

use millrace_schemas::submit::{NormOver, RewardNorm};

use super::{NO_SPREAD, Scored, rewards};

/// How many numbers there were, their mean, and the sum of their squared distances from it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Moments {
    /// How many.
    pub count: f64,
    /// Their mean; 0 of none.
    pub mean: f64,
    /// `Σ (x − mean)²`.
    pub squares: f64,
}

impl Moments {
    /// Metrics of a step that the next one continues from.
    const NAMES: [&'static str; 3] = ["reward_norm_count", "reward_norm_mean", "reward_norm_squares"];

    /// Those of these numbers.
    #[must_use]
    pub fn of(numbers: impl Iterator<Item = f64> + Clone) -> Self {
        let count = numbers.clone().count() as f64;
        let mean = numbers.clone().sum::<f64>() / count.max(1.0);
        Self { count, mean, squares: numbers.map(|x| (x - mean).powi(2)).sum() }
    }

    /// Those of both together: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm
    /// for Computing Sample Variances", 1979.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let count = self.count + other.count;
        let apart = other.mean - self.mean;
        let share = other.count / count.max(1.0);
        Self {
            count,
            mean: self.mean + apart * share,
            squares: self.squares + other.squares + apart * apart * self.count * share,
        }
    }

    /// The standard deviation of a sample, n − 1; 0 of fewer than two.
    #[must_use]
    pub fn std(&self) -> f64 {
        if self.count < 2.0 { 0.0 } else { (self.squares / (self.count - 1.0)).sqrt() }
    }

    /// What a version's manifest holds of them, in its metrics; none where it was trained without.
    #[must_use]
    pub fn read(metrics: &BTreeMap<String, f64>) -> Self {
        let [count, mean, squares] = Self::NAMES.map(|name| metrics.get(name).copied().unwrap_or_default());
        Self { count, mean, squares }
    }

    /// What a version's manifest is to hold of them.
    pub fn metrics(&self) -> impl Iterator<Item = (String, f64)> {
        Self::NAMES.map(str::to_owned).into_iter().zip([self.count, self.mean, self.squares])
    }
}

/// Normalises the rewards of a batch; `before` are the moments of all batches before it. Gives
/// those with it, if the run has any of them. As ROLL's `reward_norm`, with zeros where there is no
/// spread.
pub fn normalise(norm: RewardNorm, groups: &mut [Vec<Scored<'_>>], before: Moments) -> Option<Moments> {
    let of_group = |group: &Vec<Scored<'_>>| Moments::of(rewards(group).into_iter());
    let batch: Vec<f64> = groups.iter().flat_map(|group| rewards(group)).collect();
    let batch = Moments::of(batch.into_iter());
    let running = before.with(batch);
    for group in &mut *groups {
        let of = |over| match over {
            NormOver::None => None,
            NormOver::Group => Some(of_group(group)),
            NormOver::Batch => Some(batch),
            NormOver::Running => Some(running),
        };
        let mean = of(norm.mean).map_or(0.0, |moments| moments.mean);
        let std = of(norm.std).map(|moments| moments.std());
        let factor = match std {
            None => 1.0,
            Some(std) if std <= NO_SPREAD => 0.0,
            Some(std) => 1.0 / (std + 1e-6),
        };
        group.iter_mut().for_each(|rollout| rollout.moved(mean, factor));
    }
    norm.is_over(NormOver::Running).then_some(running)
}

impl Scored<'_> {
    /// Its reward less `mean`, times `factor`. Each turn's part is multiplied too, and the last
    /// loses the mean.
    fn moved(&mut self, mean: f64, factor: f64) {
        self.reward = (self.reward - mean) * factor;
        if let Some(last) = self.turns.last_mut() {
            last.reward -= mean;
        }
        self.turns.iter_mut().for_each(|turn| turn.reward *= factor);
    }
}

/// `(A − mean) / (std + 1e-6)` over all of these; zeros where there is no spread. As ROLL's
/// `whiten_advantages`.
pub fn whiten<'a>(advantages: impl Iterator<Item = &'a mut f32>) {
    let all: Vec<&mut f32> = advantages.collect();
    let moments = Moments::of(all.iter().map(|a| f64::from(**a)));
    let std = moments.std();
    for a in all {
        let centred = f64::from(*a) - moments.mean;
        *a = if std <= NO_SPREAD { 0.0 } else { centred / (std + 1e-6) } as f32;
    }
}
