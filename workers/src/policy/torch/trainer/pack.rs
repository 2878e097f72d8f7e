//! Which rollouts share an update, and which of those a forward.

use tch::{Device, Tensor};

use super::deal::Deal;
use super::samples::Sample;
use crate::policy::decoder::{Config, Extent, Packed, Rows};
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

/// Splits a minibatch into forwards of at most `most` tokens, unless a rollout alone passes that. Rollouts of like
/// length go together.
pub(super) fn microbatches(rows: &[Sample], minibatch: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut order = minibatch.to_vec();
    order.sort_by_key(|&index| (std::cmp::Reverse(rows[index].tokens.len()), index));
    order.retain(|&index| !rows[index].wanted.is_empty());
    let mut packed: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for index in order {
        let tokens = rows[index].inputs();
        match packed.last_mut() {
            Some(batch) if filled + tokens <= most => batch.push(index),
            _ => {
                packed.push(vec![index]);
                filled = 0;
            }
        }
        filled += tokens;
    }
    packed
}

/// One forward: rollouts one after another, N tokens, M of them sampled.
#[derive(Debug)]
pub(super) struct Microbatch {
    pub(super) rows: Rows,
    pub(super) attend: Packed,
    pub(super) sampled: Sampled,
    /// Sampled tokens of each rollout; they add up to M.
    pub(super) rollouts: Vec<usize>,
    /// Those of each turn.
    pub(super) turns: Vec<usize>,
}

/// What is known of sampled tokens, `[M]` each.
#[derive(Debug)]
pub(super) struct Sampled {
    pub(super) targets: Tensor,
    pub(super) behaviour: Tensor,
    pub(super) old: Tensor,
    /// `None` without a reference model.
    pub(super) reference: Option<Tensor>,
    pub(super) advantage: Tensor,
    /// `None` without a critic.
    pub(super) aim: Option<Aim>,
    /// What a token's policy loss is multiplied by; `None` where nothing corrects it.
    pub(super) weight: Option<Tensor>,
    /// 1 for a token that counts.
    pub(super) mask: Tensor,
    /// What a token's loss is multiplied by in the update's.
    pub(super) share: Tensor,
    /// For losses of whole rollouts or turns: `log p − log p_old`, its mean over the token's stretch.
    pub(super) mean_log_ratio: Option<Tensor>,
    /// 1 for a token that the version trained on sampled.
    pub(super) fresh: Tensor,
}

/// What a critic learns from, `[M]` each.
#[derive(Debug)]
pub(super) struct Aim {
    /// What it expected before the step's first update.
    pub(super) values: Tensor,
    /// What it should have expected.
    pub(super) returns: Tensor,
}

impl Sampled {
    /// Those of a stretch of the tokens.
    pub(super) fn narrow(&self, from: i64, count: i64) -> Self {
        let part = |of: &Tensor| of.narrow(0, from, count);
        Self {
            targets: part(&self.targets),
            behaviour: part(&self.behaviour),
            old: part(&self.old),
            reference: self.reference.as_ref().map(part),
            advantage: part(&self.advantage),
            aim: self.aim.as_ref().map(|aim| Aim { values: part(&aim.values), returns: part(&aim.returns) }),
            weight: self.weight.as_ref().map(part),
            mask: part(&self.mask),
            share: part(&self.share),
            mean_log_ratio: self.mean_log_ratio.as_ref().map(part),
            fresh: part(&self.fresh),
        }
    }
}

impl Microbatch {
    /// Packs `samples`, which are not empty and each have a sampled token. `share` tells what a token of a rollout with
    /// so many sampled tokens counts.
    pub(super) fn pack(
        samples: &[&Sample],
        share: impl Fn(usize) -> f64,
        config: &Config,
        device: Device,
    ) -> Self {
        let mut columns = Columns::default();
        samples.iter().for_each(|sample| columns.push(sample, share(sample.wanted.len()) as f32));
        let extents: Vec<Extent<'_>> = samples
            .iter()
            .zip(&columns.wanted)
            .map(|(sample, wanted)| Extent { tokens: sample.inputs() as i64, wanted })
            .collect();
        let integers = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        let floats = |numbers: &[f32]| Tensor::from_slice(numbers).to_device(device);
        Self {
            rows: Rows {
                tokens: integers(&columns.tokens),
                positions: integers(&columns.positions),
                wanted: integers(&columns.wanted_rows),
            },
            attend: Packed::new(config, &extents, device),
            sampled: Sampled {
                targets: integers(&columns.targets),
                mask: floats(&columns.mask),
                share: floats(&columns.share),
                mean_log_ratio: None,
                weight: (!columns.weight.is_empty()).then(|| floats(&columns.weight)),
                behaviour: floats(&columns.behaviour),
                old: floats(&columns.old),
                reference: (!columns.reference.is_empty()).then(|| floats(&columns.reference)),
                advantage: floats(&columns.advantage),
                aim: (!columns.returns.is_empty())
                    .then(|| Aim { values: floats(&columns.values), returns: floats(&columns.returns) }),
                fresh: floats(&columns.fresh),
            },
            rollouts: samples.iter().map(|sample| sample.wanted.len()).collect(),
            turns: samples.iter().flat_map(|sample| &sample.turns).copied().collect(),
        }
    }
}

/// The numbers of a [`Microbatch`] before they are tensors.
#[derive(Debug, Default)]
struct Columns {
    tokens: Vec<i64>,
    positions: Vec<i64>,
    /// Of each rollout, by position.
    wanted: Vec<Vec<i64>>,
    wanted_rows: Vec<i64>,
    targets: Vec<i64>,
    behaviour: Vec<f32>,
    old: Vec<f32>,
    reference: Vec<f32>,
    advantage: Vec<f32>,
    values: Vec<f32>,
    returns: Vec<f32>,
    weight: Vec<f32>,
    mask: Vec<f32>,
    share: Vec<f32>,
    fresh: Vec<f32>,
}

impl Columns {
    fn push(&mut self, sample: &Sample, share: f32) {
        let (first, inputs) = (self.tokens.len() as i64, sample.inputs());
        self.tokens.extend(sample.tokens[..inputs].iter().map(|&token| i64::from(token)));
        self.positions.extend(0..inputs as i64);
        let wanted: Vec<i64> = sample.wanted.iter().map(|&position| position as i64).collect();
        self.wanted_rows.extend(wanted.iter().map(|position| first + position));
        self.targets.extend(sample.wanted.iter().map(|&position| i64::from(sample.tokens[position + 1])));
        self.wanted.push(wanted);
        self.behaviour.extend(&sample.behaviour);
        self.old.extend(&sample.old);
        self.reference.extend(&sample.reference);
        self.advantage.extend(&sample.advantage);
        self.values.extend(&sample.values);
        self.returns.extend(&sample.returns);
        self.weight.extend(&sample.weight);
        self.share.extend(sample.wanted.iter().map(|_| share));
        let flag = |flag: &bool| f32::from(u8::from(*flag));
        self.fresh.extend(sample.fresh.iter().map(flag));
        self.mask.extend(sample.kept.iter().map(flag));
        // Where nothing was rejected, everything counts.
        self.mask.resize(self.share.len(), 1.0);
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
            reference: Vec::new(),
            fresh: vec![true; sampled],
            turns: vec![sampled],
            advantage: vec![1.0; sampled],
            values: Vec::new(),
            returns: Vec::new(),
            weight: Vec::new(),
            kept: Vec::new(),
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
        // A rollout's last token is no input: 11 + 10 + 9 fit 30, and padding counts nothing.
        let packed = microbatches(&rows, &[0, 1, 2, 3, 4, 5], 30);
        assert_eq!(packed, [vec![3], vec![1], vec![2, 4, 0]]);
        let packed = microbatches(&rows, &[0, 1, 2, 3, 4, 5], 29);
        assert_eq!(packed, [vec![3], vec![1], vec![2, 4], vec![0]]);
        assert_eq!(microbatches(&rows, &[3, 0], 308), [vec![3, 0]]);
    }
}
