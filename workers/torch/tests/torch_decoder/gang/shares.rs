//! Members have the turns of their own share of a batch alone. The step is the one of members that
//! have all turns, bit for bit.

use millrace_policy::PolicyError;
use millrace_schemas::submit::{
    Advantage, Aggregation, Algorithm, Kl, KlEstimator, KlPlace, NormOver, OldPolicy, RewardNorm, Shaping,
};
use millrace_schemas::train_shard::Batch;

use super::books::{Books, How, batches, many_updates, members, referred};
use super::ranks::{PATIENCE, assignments};
use crate::algorithm_steps::{ice_pop, lite_ppo};
use crate::support::uneven;

/// Everything by which one row's loss depends on other rows.
fn algorithms() -> Vec<(&'static str, Algorithm)> {
    let plain = Algorithm { learning_rate: 1e-3, ..Algorithm::default() };
    let kl = Kl { place: KlPlace::Reward, ..Kl::of_loss(0.3, KlEstimator::K1) };
    let running = RewardNorm { mean: NormOver::Running, std: NormOver::Running };
    let cost =
        Shaping { overlong_tokens: 4, overlong_buffer: 2, overlong_penalty: 0.5, ..Shaping::default() };
    let many = many_updates(true).algorithm;
    vec![
        ("plain", plain.clone()),
        ("epochs and minibatches", many.clone()),
        ("sequence means", Algorithm { aggregation: Aggregation::SeqMeanTokenMean, ..many.clone() }),
        ("observations compared", Algorithm { advantage: Advantage::GiGpo, ..many.clone() }),
        ("KL in the reward", Algorithm { kl: Some(kl), ..plain.clone() }),
        (
            "KL in the reward, proximal",
            Algorithm { kl: Some(kl), old: OldPolicy::Proximal, correction: ice_pop(), ..many.clone() },
        ),
        ("critic", Algorithm { advantage: Advantage::Gae, ..many }),
        ("whitened", Algorithm { whiten_advantages: true, mask_truncated: true, ..lite_ppo(&plain) }),
        ("rewards by length", Algorithm { shaping: cost, reward_norm: running, ..plain }),
    ]
}

/// Rollouts of unlike lengths, some of which observed the same, and one was cut off.
fn mixed(batch: &Batch) -> Batch {
    let mut batch = uneven(batch, 0.5);
    batch.groups[1].rollouts[2].truncated = true;
    for group in &mut batch.groups {
        let first = group.rollouts[0].clone();
        for rollout in &mut group.rollouts[1..] {
            let same = first.turns[0].at.min(rollout.turns[0].at) as usize;
            rollout.tokens[..same].copy_from_slice(&first.tokens[..same]);
        }
    }
    batch
}

#[test]
fn a_members_own_turns_make_the_step_of_all_turns_bit_for_bit() {
    for (name, algorithm) in algorithms() {
        let how = How { algorithm, checkpoint: true };
        for world in 1..=3 {
            let made = [true, false].map(|gives_all| {
                let (mut gang, zero) = Books::new(1);
                gang.gives_all = gives_all;
                let batches: Vec<Batch> = batches(&zero, &gang, 2, (3, 4)).iter().map(mixed).collect();
                gang.steps(&mut members(world), zero, &batches, &how).manifest
            });
            assert_eq!(made[0], made[1], "{name} world={world}");
        }
    }
}

/// A worker's error, if it fetched less than it computes, is found before a forward.
#[test]
fn a_share_that_lacks_turns_is_refused() {
    let (gang, zero) = Books::new(1);
    let mut batch = batches(&zero, &gang, 1, (2, 4)).remove(0);
    let stored = referred(&batch.groups[0].rollouts[1]);
    batch.groups[0].rollouts[1] = stored;
    let alone = assignments(1, PATIENCE);
    let (_, made) = gang.attempt(&mut members(1), &alone, &zero, &batch, &many_updates(true));
    match made.into_iter().next().unwrap() {
        Err(PolicyError::Impossible(reason)) => assert!(reason.contains("index=1"), "{reason}"),
        other => panic!("{other:?}"),
    }
}
