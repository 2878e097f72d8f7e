//! Which rollouts share an update, and which of those a forward.

use tch::{Device, Tensor};

use super::deal::Deal;
use super::samples::Sample;
use crate::policy::decoder::{Config, Padded, Rows};
use crate::random::Stream;

/// Splits `count` rollouts into `parts` minibatches of like size, drawn by `seed`.
pub(super) fn minibatches(count: usize, parts: usize, seed: u64) -> Vec<Vec<usize>> {
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

/// The rows of a minibatch that a member computes: dealt by length, so that members have like work. Where there are
/// fewer rows than members, some have none.
pub(super) fn dealt(rows: &[Sample], minibatch: &[usize], deal: &Deal) -> Vec<usize> {
    let mut order = minibatch.to_vec();
    order.sort_by_key(|&index| (std::cmp::Reverse(rows[index].tokens.len()), index));
    order.into_iter().skip(deal.rank as usize).step_by(deal.world as usize).collect()
}

/// Splits a minibatch into forwards of at most `most` tokens, padding included, unless a rollout alone passes
/// that. Rollouts of like length go together, so that little is padded.
pub(super) fn microbatches(rows: &[Sample], minibatch: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut order = minibatch.to_vec();
    order.sort_by_key(|&index| (std::cmp::Reverse(rows[index].tokens.len()), index));
    order.retain(|&index| !rows[index].wanted.is_empty());
    let mut packed: Vec<Vec<usize>> = Vec::new();
    for index in order {
        match packed.last_mut() {
            Some(batch) if (batch.len() + 1) * rows[batch[0]].tokens.len() <= most => batch.push(index),
            _ => packed.push(vec![index]),
        }
    }
    packed
}

/// One forward: B rollouts padded to T tokens, and to R sampled ones. What is per sampled token is `[B * R]`.
#[derive(Debug)]
pub(super) struct Microbatch {
    pub(super) rows: Rows,
    pub(super) attend: Padded,
    /// The sampled tokens.
    pub(super) targets: Tensor,
    pub(super) behaviour: Tensor,
    pub(super) old: Tensor,
    pub(super) advantage: Tensor,
    /// 1 for a sampled token, 0 for padding.
    pub(super) mask: Tensor,
}

impl Microbatch {
    /// Packs `samples`, which are not empty and each have a sampled token.
    pub(super) fn pack(samples: &[&Sample], config: &Config, device: Device) -> Self {
        // The last token predicts nothing that was sampled.
        let length = samples.iter().map(|s| s.tokens.len() - 1).max().unwrap_or(1);
        let sampled = samples.iter().map(|s| s.wanted.len()).max().unwrap_or(1);
        let mut columns = Columns::default();
        for sample in samples {
            columns.push(sample, length, sampled);
        }
        let integers = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        let floats = |numbers: &[f32]| Tensor::from_slice(numbers).to_device(device);
        let (batch, length) = (samples.len() as i64, length as i64);
        let wanted = integers(&columns.wanted_positions).view([batch, sampled as i64]);
        Self {
            rows: Rows {
                tokens: integers(&columns.tokens),
                positions: integers(&columns.positions),
                wanted: integers(&columns.wanted_rows),
            },
            attend: Padded::new(config, batch, length, &wanted),
            targets: integers(&columns.targets),
            behaviour: floats(&columns.behaviour),
            old: floats(&columns.old),
            advantage: floats(&columns.advantage),
            mask: floats(&columns.mask),
        }
    }
}

/// The numbers of a [`Microbatch`] before they are tensors.
#[derive(Debug, Default)]
struct Columns {
    tokens: Vec<i64>,
    positions: Vec<i64>,
    wanted_positions: Vec<i64>,
    wanted_rows: Vec<i64>,
    targets: Vec<i64>,
    behaviour: Vec<f32>,
    old: Vec<f32>,
    advantage: Vec<f32>,
    mask: Vec<f32>,
}

impl Columns {
    fn push(&mut self, sample: &Sample, length: usize, sampled: usize) {
        let first = self.tokens.len();
        let inputs = sample.tokens.len() - 1;
        self.tokens.extend(sample.tokens[..inputs].iter().map(|&token| i64::from(token)));
        self.tokens.resize(first + length, 0);
        self.positions.extend(0..length as i64);
        let end = self.mask.len() + sampled;
        for (index, &position) in sample.wanted.iter().enumerate() {
            self.wanted_positions.push(position as i64);
            self.wanted_rows.push((first + position) as i64);
            self.targets.push(i64::from(sample.tokens[position + 1]));
            self.behaviour.push(sample.behaviour[index]);
            self.old.push(sample.old[index]);
            self.advantage.push(sample.advantage as f32);
            self.mask.push(1.0);
        }
        self.wanted_positions.resize(end, 0);
        self.wanted_rows.resize(end, first as i64);
        self.targets.resize(end, 0);
        for column in [&mut self.behaviour, &mut self.old, &mut self.advantage, &mut self.mask] {
            column.resize(end, 0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(length: usize, sampled: usize) -> Sample {
        Sample {
            tokens: vec![1; length],
            wanted: (0..sampled).collect(),
            behaviour: vec![0.0; sampled],
            old: vec![0.0; sampled],
            advantage: 1.0,
        }
    }

    #[test]
    fn every_rollout_is_in_one_minibatch_and_the_seed_decides_which() {
        let split = minibatches(10, 3, 5);
        let mut all = split.concat();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        assert_eq!(split.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3, 4]);
        assert_eq!(split, minibatches(10, 3, 5));
        assert_ne!(split, minibatches(10, 3, 6));
    }

    #[test]
    fn forwards_stay_within_the_budget_and_hold_like_lengths() {
        let rows: Vec<Sample> = [10, 100, 12, 300, 11, 0].map(|n| row(n, n / 10)).into();
        let packed = microbatches(&rows, &[0, 1, 2, 3, 4, 5], 40);
        assert_eq!(packed, [vec![3], vec![1], vec![2, 4, 0]]);
    }
}
