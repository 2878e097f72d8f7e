//! Microbatches: which rollouts share a forward.

use millrace_schemas::train_shard::Sequence;
use tch::{Device, Tensor};

use super::per_token::{PerToken, Row, ScoredTokens};
use crate::decoder::{Config, Extent, Packed, Rows};
use crate::libtorch::common;

/// Splits a minibatch into forwards of at most `most` tokens, unless a rollout alone exceeds that.
/// Rollouts with a common prefix go together. From the second on, the prefix counts a quarter,
/// about the cost of its attention. Within a forward the longest come first.
pub(super) fn microbatches<V>(rows: &[Row<V>], minibatch: &[usize], most: usize) -> Vec<Vec<usize>> {
    let mut order = minibatch.to_vec();
    order.retain(|&index| rows[index].sampled() > 0);
    // In lexicographic order, a rollout shares the longest prefix with the one right before it.
    let first = |index: usize| rows[index].inputs(&rows[index].sequences[0]);
    order.sort_by(|&a, &b| (first(a), a).cmp(&(first(b), b)));
    let mut packed: Vec<Vec<usize>> = Vec::new();
    let mut filled = 0;
    for index in order {
        let tokens = first(index);
        let before = packed.last().and_then(|batch| batch.last()).map(|&one| first(one)).unwrap_or_default();
        let shared = common(&before, &tokens);
        let cost = |own: usize, shared: usize| own + shared.div_ceil(4);
        let forks = rows[index].sequences[1..].iter();
        let forks: usize = forks.map(|fork| cost(fork.own.len(), fork.shared())).sum();
        let more = cost(tokens.len() - shared, shared) + forks;
        match packed.last_mut() {
            Some(batch) if filled + more <= most => {
                batch.push(index);
                filled += more;
            }
            _ => {
                packed.push(vec![index]);
                filled = tokens.len() + forks;
            }
        }
    }
    for batch in &mut packed {
        batch.sort_by_key(|&index| (std::cmp::Reverse(rows[index].length), index));
    }
    packed
}

/// One forward: rollouts one after another, each a sequence or, with forks, several; N rows, M tokens
/// sampled. Tokens with the same prefix share a row, those of forks too.
#[derive(Debug)]
pub(super) struct Microbatch {
    pub(super) rows: Rows,
    pub(super) attend: Packed,
    /// The sampled tokens. `[M]`
    pub(super) targets: Tensor,
    /// Sampled tokens of each rollout; they add up to M.
    pub(super) rollouts: Vec<usize>,
    /// Those of each turn.
    pub(super) turns: Vec<usize>,
}

impl Microbatch {
    /// Packs rollouts with a sampled token each.
    pub(super) fn pack<V>(samples: &[&Row<V>], config: &Config, device: Device) -> Self {
        let mut columns = Columns::default();
        samples.iter().for_each(|sample| columns.push(sample));
        let extents: Vec<Extent<'_>> = columns
            .rows
            .iter()
            .zip(&columns.logit_positions)
            .map(|(rows, logit_positions)| Extent { tokens: rows.len() as i64, logit_positions })
            .collect();
        let integers = |numbers: &[i64]| Tensor::from_slice(numbers).to_device(device);
        Self {
            rows: Rows {
                tokens: integers(&columns.tokens),
                positions: integers(&columns.positions),
                logit_rows: integers(&columns.logit_rows),
            },
            attend: Packed::new(config, &extents, device).on_rows(&columns.rows.concat(), device),
            targets: integers(&columns.targets),
            rollouts: samples.iter().map(|sample| sample.sampled()).collect(),
            turns: samples.iter().flat_map(|sample| &sample.turns).copied().collect(),
        }
    }
}

/// Inputs of the loss beside the policy in training, `[M]` each.
#[derive(Debug)]
pub(super) struct LossInputs {
    pub(super) tokens: PerToken<Tensor>,
    /// Factor of a token's loss in the update's.
    pub(super) share: Tensor,
    /// The span that shares its ratio, where it is not the token's own.
    pub(super) span: Option<TokenSpans>,
}

/// The span of each token, `[M]` each.
#[derive(Debug)]
pub(super) struct TokenSpans {
    /// `log p − log p_old`, its mean over the span.
    pub(super) mean_log_ratio: Tensor,
    /// Tokens of the span.
    pub(super) length: Tensor,
}

impl LossInputs {
    /// Those of rollouts one after another. `share` gives the factor of a token's loss for a rollout
    /// of so many sampled tokens.
    pub(super) fn of(samples: &[&Row<ScoredTokens>], share: impl Fn(usize) -> f64, device: Device) -> Self {
        let floats = |numbers: &[f32]| Tensor::from_slice(numbers).to_device(device);
        let each: Vec<&PerToken<Vec<f32>>> = samples.iter().map(|sample| &sample.values.tokens).collect();
        let shares = samples
            .iter()
            .flat_map(|sample| std::iter::repeat_n(share(sample.sampled()) as f32, sample.sampled()));
        Self {
            tokens: PerToken::gather(&each, |rows| {
                floats(&rows.into_iter().flatten().copied().collect::<Vec<f32>>())
            }),
            share: floats(&shares.collect::<Vec<f32>>()),
            span: None,
        }
    }

    /// `count` tokens from `from` on.
    pub(super) fn narrow(&self, from: i64, count: i64) -> Self {
        let part = |of: &Tensor| of.narrow(0, from, count);
        Self {
            tokens: self.tokens.map(part),
            share: part(&self.share),
            span: self.span.as_ref().map(|span| TokenSpans {
                mean_log_ratio: part(&span.mean_log_ratio),
                length: part(&span.length),
            }),
        }
    }
}

/// The numbers of a [`Microbatch`] before they are tensors.
#[derive(Debug, Default)]
struct Columns {
    /// Of each sequence, by position: its row.
    rows: Vec<Vec<i64>>,
    tokens: Vec<i64>,
    positions: Vec<i64>,
    /// Of each sequence.
    logit_positions: Vec<Vec<i64>>,
    logit_rows: Vec<i64>,
    targets: Vec<i64>,
}

impl Columns {
    /// The rows of the longest prefix of `inputs` with which a sequence before them begins.
    fn shared(&self, inputs: &[i64]) -> Vec<i64> {
        let shared_prefix = |rows: &&Vec<i64>| {
            rows.iter().zip(inputs).take_while(|(row, token)| self.tokens[**row as usize] == **token).count()
        };
        let longest = self.rows.iter().max_by_key(shared_prefix);
        longest.map_or_else(Vec::new, |rows| rows[..shared_prefix(&rows)].to_vec())
    }

    fn push<V>(&mut self, sample: &Row<V>) {
        sample.sequences.iter().for_each(|sequence| self.push_sequence(sample, sequence));
    }

    fn push_sequence<V>(&mut self, sample: &Row<V>, sequence: &Sequence) {
        let own = sample.logit_positions.iter().filter(|position| sequence.own.contains(position));
        // From a place among the rollout's tokens to one in the sequence.
        let (to, from) = (sequence.shared(), sequence.own.start);
        let logit_positions: Vec<i64> = own.clone().map(|position| (position - from + to) as i64).collect();
        if logit_positions.is_empty() {
            return;
        }
        let inputs: Vec<i64> = sample.inputs(sequence).iter().map(|&token| i64::from(token)).collect();
        let mut rows = self.shared(&inputs);
        let (first, known) = (self.tokens.len() as i64, rows.len());
        rows.extend((first..).take(inputs.len() - known));
        self.tokens.extend(&inputs[known..]);
        self.positions.extend(known as i64..inputs.len() as i64);
        self.logit_rows.extend(logit_positions.iter().map(|&position| rows[position as usize]));
        self.rows.push(rows);
        self.targets.extend(own.map(|&position| i64::from(sample.tokens[position + 1])));
        self.logit_positions.push(logit_positions);
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    fn row(tokens: Vec<u32>, sampled: usize) -> Row<()> {
        let length = tokens.len();
        let sequences = vec![Sequence { before: Vec::new(), own: 0..length }];
        let (logit_positions, turns) = ((0..sampled).collect(), vec![sampled]);
        Row { length, tokens, sequences, logit_positions, turns, values: () }
    }

    #[test]
    fn forwards_stay_within_the_budget_and_the_longest_come_first() {
        let lengths = (0..).zip([10, 100, 12, 300, 11, 0]);
        let rows: Vec<Row<()>> =
            lengths.map(|(token, length)| row(vec![token; length], length / 10)).collect();
        // A rollout's last token is no input: 11 + 10 + 9 fit 30, and padding counts nothing.
        assert_eq!(microbatches(&rows, &[0, 2, 4, 5], 30), [vec![2, 4, 0]]);
        assert_eq!(microbatches(&rows, &[0, 2, 4, 5], 29), [vec![2, 0], vec![4]]);
        assert_eq!(microbatches(&rows, &[3, 0], 308), [vec![3, 0]]);
        assert_eq!(microbatches(&rows, &[3, 0], 307), [vec![0], vec![3]], "one alone may pass it");
    }

    #[test]
    fn rollouts_of_a_prompt_go_together_and_it_has_its_rows_once() {
        let of = |prompt: u32, answer: &[u32]| {
            let tokens: Vec<u32> = std::iter::repeat_n(prompt, 20).chain(answer.iter().copied()).collect();
            row(tokens, 1)
        };
        let rows = [
            of(1, &[5, 6, 7]),
            of(2, &[5, 6, 7]),
            of(1, &[5, 8]),
            of(2, &[9]),
            of(1, &[4, 4, 4, 4]),
            of(1, &[5]),
        ];
        // Of prompt 1: 20 and 3; then 5 of 20 shared; then 20 shared and 1; then 21 shared and 1.
        let packed = microbatches(&rows, &[0, 1, 2, 3, 4, 5], 23 + 5 + 6 + 7);
        assert_eq!(packed, [vec![4, 0, 2, 5], vec![1, 3]]);
        let mut columns = Columns::default();
        packed[0].iter().for_each(|&index| columns.push(&rows[index]));
        // The prompt, what three answered after 4, 4 and 4, and after 5 and 6; all others' inputs
        // are begun with by them.
        assert_eq!(columns.tokens.len(), 20 + 3 + 2);
        assert_eq!(columns.positions[20..], [20, 21, 22, 20, 21]);
        assert_eq!(columns.rows[1][18..], [18, 19, 23, 24]);
        assert_eq!((columns.rows[2].len(), columns.rows[2][20]), (21, 23));
        let seen =
            |rows: &[i64]| rows.iter().map(|&row| columns.tokens[row as usize] as u32).collect::<Vec<_>>();
        for (rows_of, &index) in columns.rows.iter().zip(&packed[0]) {
            assert_eq!(seen(rows_of), *rows[index].inputs(&rows[index].sequences[0]));
        }
    }

    #[test]
    fn a_fork_is_a_sequence_of_its_own_and_what_it_follows_has_its_rows_once() {
        let sequence = |before: &[Range<usize>], own| Sequence { before: before.to_vec(), own };
        // 1 2 | 3 4 ; 5 6 | 7 after none; 8 | 9 after 1 2 | 3 4.
        let forked = Row {
            length: 9,
            tokens: (1..10).collect(),
            sequences: vec![sequence(&[], 0..4), sequence(&[], 4..7), sequence(&[0..2, 2..4], 7..9)],
            logit_positions: vec![1, 2, 5, 7],
            turns: vec![2, 1, 1],
            values: (),
        };
        let mut columns = Columns::default();
        columns.push(&forked);
        let seen = |rows: &Vec<i64>| rows.iter().map(|&row| columns.tokens[row as usize]).collect::<Vec<_>>();
        let sequences: Vec<Vec<i64>> = columns.rows.iter().map(seen).collect();
        assert_eq!(sequences, [vec![1, 2, 3], vec![5, 6], vec![1, 2, 3, 4, 8]]);
        assert_eq!(columns.rows[2][..3], columns.rows[0][..], "they share rows");
        assert_eq!(columns.positions, [0, 1, 2, 0, 1, 3, 4]);
        assert_eq!(columns.targets, [3, 4, 7, 9]);
        assert_eq!(columns.logit_positions, [vec![1, 2], vec![1], vec![4]]);
        assert_eq!(microbatches(&[forked], &[0], 1), [vec![0]]);
    }
}
