use millrace_schemas::blob::Sha;
use millrace_schemas::submit::{Kl, KlEstimator};
use millrace_schemas::train_shard::{BatchGroup, StoredTrajectory};
use millrace_schemas::{EntryRef, PolicyVersion, RolloutId};

use super::*;

/// Rollouts of these many tokens, by reference.
fn batch(lengths: &[u32]) -> Batch {
    let rollout = |(index, tokens): (u32, &u32)| BatchRollout {
        id: RolloutId { group: 0, index, attempt: 0 },
        start_version: PolicyVersion(0),
        reward: 0.0,
        success: false,
        truncated: false,
        tokens: Vec::new(),
        turns: Vec::new(),
        forks: Vec::new(),
        stored: Some(StoredTrajectory {
            entries: vec![EntryRef { seq: u64::from(index), tokens: *tokens, check: 0 }],
            uncut_logprobs: false,
        }),
    };
    Batch {
        run: "r".parse().unwrap(),
        base: PolicyVersion(0),
        manifest: Sha::of(b"manifest"),
        config: Sha::of(b"config"),
        seed: 5,
        temperature: 1.0,
        sample_below: None,
        groups: vec![BatchGroup { group: 0, domain: 0, rollouts: (0..).zip(lengths).map(rollout).collect() }],
    }
}

/// The tokens of each rank's share.
fn tokens(batch: &Batch, algorithm: &Algorithm, world: u32) -> Vec<usize> {
    let of = |rank| {
        let mut batch = batch.clone();
        let share = Share::of(&batch, algorithm, Place { rank, world });
        share.rollouts(&mut batch).map(|rollout| rollout.length()).sum()
    };
    (0..world).map(of).collect()
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
fn shares_are_alike_and_add_up_to_the_batch() {
    let lengths: Vec<u32> = (0..64).map(|index| 100 + index * 37 % 50).collect();
    let batch = batch(&lengths);
    let all: usize = lengths.iter().map(|length| *length as usize).sum();
    let plain = Algorithm::default();
    for algorithm in [
        plain.clone(),
        Algorithm { epochs: 3, ..plain.clone() },
        Algorithm { epochs: 1, minibatches: 4, ..plain.clone() },
        Algorithm { kl: Some(Kl::of_loss(0.1, KlEstimator::K3)), ..plain.clone() },
    ] {
        for world in [1, 2, 3, 8] {
            let shares = tokens(&batch, &algorithm, world);
            assert_eq!(shares.iter().sum::<usize>(), all);
            let most = *shares.iter().max().unwrap() as f64;
            // Of each further minibatch a rank may have one rollout more than another.
            let further = f64::from(algorithm.minibatches - 1) * f64::from(*lengths.iter().max().unwrap());
            let alike = 1.1 * (all as f64 / f64::from(world) + further);
            assert!(most < alike, "world={world}: {shares:?} of {all}");
        }
    }
}

#[test]
fn a_share_has_what_its_rank_computes_in_any_pass() {
    let batch = batch(&(0..40).map(|index| 10 + index * 7 % 13).collect::<Vec<_>>());
    let lengths: Vec<usize> = rollouts(&batch).map(BatchRollout::length).collect();
    let all: Vec<usize> = (0..lengths.len()).collect();
    let algorithm = Algorithm { epochs: 2, minibatches: 3, old: OldPolicy::Proximal, ..Algorithm::default() };
    for rank in 0..3 {
        let place = Place { rank, world: 3 };
        let share = Share::of(&batch, &algorithm, place);
        let passes = (0..2).flat_map(|epoch| minibatches_of(&batch, &algorithm, lengths.len(), epoch));
        for rows in passes.chain([all.clone()]) {
            let own = place.own(&rows, |index| lengths[index]);
            assert!(own.into_iter().all(|index| share.needs(index)));
        }
        assert!(!(0..lengths.len()).all(|index| share.needs(index)));
    }
}

#[test]
fn fewer_rollouts_than_ranks_leave_some_without() {
    assert_eq!(tokens(&batch(&[5, 9]), &Algorithm::default(), 4), [9, 5, 0, 0]);
}
