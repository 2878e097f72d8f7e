//! Which rollouts of a batch a rank computes. It follows from lengths, seed and settings, so every
//! rank knows the shares of all, and fetches the tokens of its own alone.

use millrace_schemas::submit::{Advantage, Algorithm, OldPolicy};
use millrace_schemas::train_shard::{Batch, BatchRollout};

use crate::random::Stream;

/// A rank's place in a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Below `world`.
    pub rank: u32,
    /// Ranks of the gang, 1 or more.
    pub world: u32,
}

impl Place {
    /// A gang of one.
    pub const ALONE: Self = Self { rank: 0, world: 1 };

    /// This rank's rows of those with these indices: every `world`th by length, so that ranks have
    /// similar work. Where there are fewer rows than ranks, some have none.
    #[must_use]
    pub fn own(self, rows: &[usize], length: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut order = rows.to_vec();
        order.sort_by_key(|&index| (std::cmp::Reverse(length(index)), index));
        order.into_iter().skip(self.rank as usize).step_by(self.world as usize).collect()
    }
}

/// Splits `count` rollouts into `parts` minibatches of like size, drawn by `seed`.
#[must_use]
pub fn minibatches(count: usize, parts: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..count).collect();
    let parts = parts.clamp(1, count.max(1));
    if parts > 1 {
        let mut random = Stream::new(seed);
        for last in (1..count).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
    }
    (0..parts).map(|part| order[count * part / parts..count * (part + 1) / parts].to_vec()).collect()
}

/// The minibatches of one epoch of a step on `batch`, of `count` rollouts.
#[must_use]
pub fn minibatches_of(batch: &Batch, algorithm: &Algorithm, count: usize, epoch: u32) -> Vec<Vec<usize>> {
    minibatches(count, algorithm.minibatches as usize, batch.seed.wrapping_add(u64::from(epoch)))
}

/// The rollouts whose tokens a rank needs for its share of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// By the rollout's index in the batch. `[B·G]`
    needed: Vec<bool>,
}

impl Share {
    /// The share of the rank at `place`. Minibatches are drawn for each epoch, so with several of
    /// both the shares of two ranks overlap. Otherwise they do not.
    #[must_use]
    pub fn of(batch: &Batch, algorithm: &Algorithm, place: Place) -> Self {
        let lengths: Vec<usize> = rollouts(batch).map(BatchRollout::length).collect();
        let mut needed = vec![place.world == 1; lengths.len()];
        let mut take = |rows: &[usize]| {
            place.own(rows, |index| lengths[index]).into_iter().for_each(|index| needed[index] = true);
        };
        for epoch in 0..algorithm.epochs {
            minibatches_of(batch, algorithm, lengths.len(), epoch).iter().for_each(|rows| take(rows));
        }
        if looks_at_all(algorithm) {
            take(&(0..lengths.len()).collect::<Vec<_>>());
        }
        Self { needed }
    }

    /// Whether the rank needs the rollout of this index.
    #[must_use]
    pub fn needs(&self, index: usize) -> bool {
        self.needed.get(index).copied().unwrap_or_default()
    }

    /// The rollouts of `batch` that the rank needs.
    pub fn rollouts<'a>(&'a self, batch: &'a mut Batch) -> impl Iterator<Item = &'a mut BatchRollout> {
        let all = batch.groups.iter_mut().flat_map(|group| &mut group.rollouts);
        all.zip(&self.needed).filter_map(|(rollout, needed)| needed.then_some(rollout))
    }
}

/// Whether each rollout is looked at once, over all minibatches, before the first update.
const fn looks_at_all(algorithm: &Algorithm) -> bool {
    matches!(algorithm.old, OldPolicy::Proximal)
        || algorithm.kl.is_some()
        || matches!(algorithm.advantage, Advantage::Gae | Advantage::GiGpo)
}

fn rollouts(batch: &Batch) -> impl Iterator<Item = &BatchRollout> {
    batch.groups.iter().flat_map(|group| &group.rollouts)
}

#[cfg(test)]
mod tests;
