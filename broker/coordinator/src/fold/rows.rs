//! The dataset row of a prompt: a pure function of seed and number. So shuffling keeps no state, a
//! resumed run continues with the same rows, and any epoch can be computed without those before.

use millrace_schemas::env_step::{EnvironmentSpec, Split};

use crate::fold::seeds::{Purpose, mix, seed};

/// Rounds of the network. Four make any permutation of two halves look drawn (Luby and Rackoff
/// 1988); two more are for rows so few that a half has a bit or two.
const ROUNDS: u64 = 6;

/// The row of the `number`th prompt of a split of a domain, counted from 0 within the split; `None`
/// for an environment without rows.
#[must_use]
pub fn row_of_prompt(
    (run_seed, domain): (u64, u32),
    environment: &EnvironmentSpec,
    split: Split,
    number: u64,
) -> Option<u64> {
    let dataset = environment.dataset()?;
    let rows = dataset.content?.rows(split);
    let epoch = number.checked_div(rows)?;
    let place = number % rows;
    if !dataset.shuffle {
        return Some(place);
    }
    let side = match split {
        Split::Train => 0,
        Split::HeldOut => 1,
    };
    Some(permuted(seed(run_seed, Purpose::Rows, &[side, epoch, u64::from(domain)]), rows, place))
}

/// Where `place` goes in the permutation of 0 to `rows` that `key` names: a Feistel network over
/// the next even number of bits, walked until it comes back below `rows` (Black and Rogaway 2002,
/// "Ciphers with arbitrary finite domains"). The network has less than 4 × `rows` places, so that a
/// walk takes less than 4 steps in the mean.
fn permuted(key: u64, rows: u64, place: u64) -> u64 {
    debug_assert!(place < rows);
    let bits = u64::BITS - (rows - 1).leading_zeros();
    let half = bits.div_ceil(2).max(1);
    let mask = (1 << half) - 1;
    let mut at = place;
    loop {
        let (mut left, mut right) = (at >> half, at & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(key ^ mix(right ^ (round << 48))) & mask));
        }
        at = left << half | right;
        if at < rows {
            return at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(train: u64, held_out: u64, shuffle: bool) -> EnvironmentSpec {
        let blob = serde_json::json!({ "sha256": "0".repeat(64), "bytes": 1 });
        let content = serde_json::json!({ "blob": blob, "train": train, "held_out": held_out });
        let spec =
            serde_json::json!({ "name": "dataset", "path": "x", "shuffle": shuffle, "content": content });
        serde_json::from_value(spec).unwrap()
    }

    fn epoch(of: (u64, u32), environment: &EnvironmentSpec, split: Split, epoch: u64) -> Vec<u64> {
        let rows = environment.dataset().unwrap().content.unwrap().rows(split);
        (0..rows).map(|place| row_of_prompt(of, environment, split, epoch * rows + place).unwrap()).collect()
    }

    #[test]
    fn each_epoch_has_every_row_once() {
        for rows in (1..70).chain([127, 128, 129, 1_000, 4_097]) {
            let environment = of(rows, rows, true);
            for number in 0..4 {
                for split in [Split::Train, Split::HeldOut] {
                    let mut order = epoch((7, 0), &environment, split, number);
                    order.sort_unstable();
                    assert!(order.into_iter().eq(0..rows), "rows={rows} epoch={number} {split:?}");
                }
            }
        }
        let huge = of(u64::MAX, 1, true);
        assert!(row_of_prompt((1, 0), &huge, Split::Train, u64::MAX - 1).is_some(), "it comes back");
    }

    #[test]
    fn epochs_seeds_splits_and_domains_have_orders_of_their_own() {
        let environment = of(100, 100, true);
        let first = epoch((7, 0), &environment, Split::Train, 0);
        let others = [
            epoch((7, 0), &environment, Split::Train, 1),
            epoch((8, 0), &environment, Split::Train, 0),
            epoch((7, 1), &environment, Split::Train, 0),
            epoch((7, 0), &environment, Split::HeldOut, 0),
            (0..100).collect(),
        ];
        for other in others {
            let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
            // One in the mean; 8 or more have a chance of one in 100,000.
            assert!(same < 8, "{same} of 100 rows are where they were");
        }
        assert!(epoch((7, 0), &of(100, 1, false), Split::Train, 3).into_iter().eq(0..100));
    }

    #[test]
    fn rows_come_to_each_place_alike() {
        // 6 rows at the first place, over 6,000 epochs: 1,000 each, give or take five standard
        // deviations of 29.
        let environment = of(6, 1, true);
        let mut counts = [0_u32; 6];
        for number in 0..6_000 {
            counts[row_of_prompt((3, 0), &environment, Split::Train, 6 * number).unwrap() as usize] += 1;
        }
        assert!(counts.iter().all(|count| count.abs_diff(1_000) < 145), "{counts:?}");
    }
}
