//! A step is the same for one member and for several, with any size of forward.

use std::collections::BTreeMap;

use millrace_policy::Trained;
use millrace_schemas::submit::{
    Advantage, Aggregation, Algorithm, Correction, CorrectionWeight, Loss, NormOver, OldPolicy, Parameters,
    Rejection, RewardNorm,
};

use super::books::{Books, How, MOST_APART, batches, length, many_updates, members, same};
use super::ranks::{PATIENCE, assignments};
use crate::algorithm_steps::{ice_pop, ipa, lite_ppo};
use crate::support::uneven;

/// Tokens, of 62, that may be on the other side of a bound: those whose ratio is as near to it as
/// rounding. What a step does to the weights is compared by `same`.
const AT_A_BOUND: f64 = 2.5 / 62.0;

/// What steps of many updates measured, but for rounding: each processor adds up in another order,
/// AdamW's first updates turn rounding into signs, and the updates after them go on from there.
fn measured_alike(ours: &BTreeMap<String, f64>, theirs: &BTreeMap<String, f64>, what: &str) {
    for (name, value) in theirs {
        let off = (ours[name] - value).abs();
        let most = if name.ends_with("_share") { AT_A_BOUND } else { 1e-3 * value.abs().max(0.1) };
        assert!(off < most, "{what}: {name} off by {off} of {value}");
    }
}

#[test]
fn a_gang_makes_the_step_that_one_makes_alone() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 3, (4, 4));
    let how = many_updates(true);
    let reference = alone.steps(&mut members(1), zero, &batches, &how);
    for (world, tokens_per_microbatch) in [(2, 16_384), (2, 100), (4, 1), (3, 16_384)] {
        let algorithm = Algorithm { tokens_per_microbatch, ..how.algorithm.clone() };
        let (gang, zero) = Books::new(1);
        let mut members = members(world);
        let made = gang.steps(&mut members, zero, &batches, &How { algorithm, checkpoint: true });
        let what = format!("world={world} tokens={tokens_per_microbatch}");
        same((&gang, &made), (&alone, &reference), &how, &what);
        for (name, value) in &reference.manifest.metrics {
            let off = (made.manifest.metrics[name] - value).abs();
            assert!(off < 1e-4 * value.abs().max(1e-3), "{what}: {name} off by {off} of {value}");
        }
    }
}

#[test]
fn neither_aggregation_nor_correction_depends_on_the_gang() {
    let correction = Correction {
        weight: CorrectionWeight::Sequence,
        reject: Rejection::Turn,
        low: Some(0.8),
        high: Some(1.3),
        ..Correction::default()
    };
    let plain = many_updates(true).algorithm;
    let of = |loss, aggregation| Algorithm {
        loss,
        aggregation,
        correction,
        old: OldPolicy::Proximal,
        parameters: Parameters { response_tokens: 5, ..Parameters::default() },
        ..plain.clone()
    };
    for (loss, aggregation) in [
        (Loss::Cispo, Aggregation::TokenMean),
        (Loss::Gspo, Aggregation::SeqMeanTokenMean),
        (Loss::Segment, Aggregation::SeqMeanTokenSumNorm),
    ] {
        let (alone, zero) = Books::new(1);
        let batches: Vec<_> =
            batches(&zero, &alone, 2, (4, 4)).iter().map(|batch| uneven(batch, 0.5)).collect();
        let how = How { algorithm: of(loss, aggregation), checkpoint: true };
        let reference = alone.steps(&mut members(1), zero, &batches, &how);
        let (gang, zero) = Books::new(1);
        let algorithm = Algorithm { tokens_per_microbatch: 100, ..how.algorithm.clone() };
        let made = gang.steps(&mut members(3), zero, &batches, &How { algorithm, checkpoint: true });
        same((&gang, &made), (&alone, &reference), &how, &format!("{loss:?} {aggregation:?}"));
        let [ours, theirs] = [&made, &reference].map(|of| &of.manifest.metrics);
        assert!(theirs["rejected_share"] > 0.05 && theirs["rejected_share"] < 0.95, "{theirs:?}");
        measured_alike(ours, theirs, &format!("{loss:?}"));
    }
}

#[test]
fn neither_normalisation_nor_shared_ratios_depend_on_the_gang() {
    let plain = many_updates(true).algorithm;
    let running = RewardNorm { mean: NormOver::Running, std: NormOver::Running };
    for algorithm in [
        ipa(&plain),
        Algorithm { loss: Loss::Kimi, ..plain.clone() },
        Algorithm { old: OldPolicy::Proximal, correction: ice_pop(), ..plain.clone() },
        Algorithm { whiten_advantages: true, advantage_clip: 0.7, ..lite_ppo(&plain) },
        Algorithm { advantage: Advantage::Reinforce, reward_norm: running, ..plain },
    ] {
        let (alone, zero) = Books::new(1);
        let batches: Vec<_> =
            batches(&zero, &alone, 2, (4, 4)).iter().map(|batch| uneven(batch, 0.5)).collect();
        let how = How { algorithm, checkpoint: true };
        let reference = alone.steps(&mut members(1), zero, &batches, &how);
        let (gang, zero) = Books::new(1);
        let algorithm = Algorithm { tokens_per_microbatch: 100, ..how.algorithm.clone() };
        let made = gang.steps(&mut members(3), zero, &batches, &How { algorithm, checkpoint: true });
        let what = format!("{:?} {:?}", how.algorithm.advantage, how.algorithm.loss);
        same((&gang, &made), (&alone, &reference), &how, &what);
        measured_alike(&made.manifest.metrics, &reference.manifest.metrics, &what);
    }
}

#[test]
fn members_without_a_rollout_take_part() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 2, (1, 3));
    // Minibatches of one row: at most one of four members has something to do.
    let how = many_updates(true);
    let reference = alone.steps(&mut members(1), zero, &batches, &how);
    let (gang, zero) = Books::new(1);
    let made = gang.steps(&mut members(4), zero, &batches, &how);
    same((&gang, &made), (&alone, &reference), &how, "world=4");
}

#[test]
fn the_proximal_policy_is_computed_together() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 2, (4, 4));
    let mut how = many_updates(true);
    how.algorithm.old = OldPolicy::Proximal;
    let reference = alone.steps(&mut members(1), zero, &batches, &how);
    let (gang, zero) = Books::new(1);
    let made = gang.steps(&mut members(2), zero, &batches, &how);
    same((&gang, &made), (&alone, &reference), &how, "world=2");
}

#[test]
fn a_gang_trains_a_critic_that_a_gang_of_another_size_takes_over() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 3, (4, 4));
    let mut how = many_updates(true);
    how.algorithm.advantage = Advantage::Gae;
    let reference = alone.steps(&mut members(1), zero, &batches, &how);
    let (gang, zero) = Books::new(1);
    let half = gang.steps(&mut members(2), zero, &batches[..2], &how);
    let made = gang.steps(&mut members(3), half, &batches[2..], &how);
    same((&gang, &made), (&alone, &reference), &how, "2 and then 3");
    let [ours, theirs] = [gang.critic(&made), alone.critic(&reference)].map(Option::unwrap);
    let off = length(&(&ours - &theirs)) / length(&theirs);
    assert!(off < MOST_APART, "critic off by {off} of its way from 0");
    assert!(f64::try_from(theirs.abs().max()).unwrap() > how.algorithm.learning_rate);
}

#[test]
fn the_same_gang_gives_the_same_bytes_and_each_file_once() {
    let run = || {
        let (gang, zero) = Books::new(1);
        let batches = batches(&zero, &gang, 2, (4, 4));
        gang.steps(&mut members(3), zero, &batches, &many_updates(true)).manifest
    };
    let manifest = run();
    assert_eq!(manifest, run());
    let names: Vec<&str> = manifest.files.iter().map(|file| file.name.as_str()).collect();
    let shards = [0, 1, 2].map(|rank| format!("optimizer-{rank}-of-3.safetensors"));
    assert_eq!(names, ["config.json", "model.safetensors", &shards[0], &shards[1], &shards[2], "probe.json"]);
}

#[test]
fn optimiser_state_is_written_only_at_a_checkpoint() {
    let (gang, zero) = Books::new(1);
    let batches = batches(&zero, &gang, 1, (4, 4));
    let assignments = assignments(2, PATIENCE);
    let (_, made) = gang.attempt(&mut members(2), &assignments, &zero, &batches[0], &many_updates(false));
    let names = |made: &Trained| made.files.keys().cloned().collect::<Vec<_>>();
    let made: Vec<_> = made.into_iter().map(|made| names(&made.unwrap())).collect();
    let first = ["config.json", "model.safetensors", "probe.json"].map(str::to_owned).to_vec();
    assert_eq!(made, [first, vec![]]);
}

#[test]
fn reductions_begin_while_backward_runs() {
    let (gang, zero) = Books::new(1);
    let batches = batches(&zero, &gang, 1, (4, 4));
    let mut members = members(2);
    gang.steps(&mut members, zero, &batches, &many_updates(false));
    for member in &members {
        let (early, all) = member.overlapped();
        // Of each update all but nothing or the last bucket, which backward's end fills.
        assert!(all >= 6 * 4 && early == all, "early={early} of {all}");
    }
}
