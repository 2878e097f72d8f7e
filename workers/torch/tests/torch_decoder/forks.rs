//! Rollouts with forks: each turn is trained on once, in the context that it was sampled in.

use millrace_policy::Trained;
use millrace_schemas::Fork;
use millrace_schemas::submit::{Advantage, Aggregation, Algorithm, Loss};
use millrace_schemas::train_shard::{Batch, BatchRollout, BatchTurn};
use millrace_torch::TorchTrainer;

use crate::forward::difference;
use crate::step::{first_moment, once};
use crate::support::{Shape, engine, initial, sampled_batch, step, task, tokens, turns};

/// Tokens of an observation, and of a turn.
const OBSERVED: usize = 5;
const NEW: u32 = 3;
/// Turn 3 follows none, and turn 4 follows turn 2.
const FORKS: [Fork; 2] = [Fork { turn: 3, follows: 0 }, Fork { turn: 4, follows: 2 }];

/// Groups of rollouts of four turns with forks, as an engine samples them.
fn forked() -> Batch {
    let base = initial(1);
    let mut batch =
        sampled_batch(&base, 2, 3, Shape { turns: 1, observation: OBSERVED, new: NEW, below: None }, 7);
    let mut engine = engine(&base);
    for (rollout, number) in batch.groups.iter_mut().flat_map(|group| &mut group.rollouts).zip(0_u64..) {
        for (turn, follows) in [(2, 1), (3, 0), (4, 2)] {
            let ends: Vec<usize> =
                rollout.turns.iter().map(|turn| turn.at as usize + turn.logprobs.len()).collect();
            let observed = tokens(OBSERVED, 100 * number + turn);
            // Up to turn 3, what a turn follows is all before it.
            let before = if follows == 0 { 0 } else { ends[follows - 1] };
            let context = [&rollout.tokens[..before], &observed].concat();
            let done = turns(&mut engine, vec![task(context, NEW, 1_000 * number + turn)]).remove(0);
            rollout.tokens.extend(observed);
            let at = rollout.tokens.len() as u32;
            rollout.tokens.extend(&done.tokens);
            let (logprobs, segments) = (done.logprobs, done.segments);
            rollout.turns.push(BatchTurn { at, logprobs, segments, reward: 0.0 });
        }
        rollout.forks = FORKS.to_vec();
    }
    batch
}

/// The same as rollouts without forks: one for each sequence, in which only its own turns were sampled.
fn apart(rollout: &BatchRollout) -> Vec<BatchRollout> {
    let sequences = rollout.sequences().expect("well-formed forks");
    let rollouts = sequences.iter().map(|sequence| {
        let own = |turn: &&BatchTurn| sequence.own.contains(&(turn.at as usize));
        let moved = |turn: &BatchTurn| BatchTurn {
            at: turn.at - sequence.own.start as u32 + sequence.shared() as u32,
            ..turn.clone()
        };
        BatchRollout {
            tokens: sequence.tokens(&rollout.tokens).into_owned(),
            turns: rollout.turns.iter().filter(own).map(moved).collect(),
            forks: Vec::new(),
            ..rollout.clone()
        }
    });
    rollouts.collect()
}

fn trained(batch: &Batch) -> Trained {
    // Neither depends on how many rollouts there are.
    let (aggregation, advantage) = (Aggregation::TokenMean, Advantage::Reinforce);
    let algorithm = Algorithm { aggregation, advantage, max_grad_norm: 1e9, ..once() };
    step(&mut TorchTrainer::new(), &initial(1), batch, &algorithm).unwrap()
}

#[test]
fn a_step_on_forks_is_that_on_their_sequences() {
    let batch = forked();
    let mut linear = batch.clone();
    for group in &mut linear.groups {
        group.rollouts = group.rollouts.iter().flat_map(apart).collect();
    }
    let lengths: Vec<usize> = linear.groups[0].rollouts[..3].iter().map(|one| one.tokens.len()).collect();
    assert_eq!(lengths.len(), 3, "a sequence, and one more for each fork");
    assert!(lengths[1] < lengths[0] && lengths[0] < lengths[2], "{lengths:?}");
    let (ours, theirs) = (trained(&batch), trained(&linear));
    let (moment, expected) = (first_moment(&ours), first_moment(&theirs));
    let largest = f64::try_from(expected.abs().max()).unwrap();
    assert!(difference(&moment, &expected) < 1e-5 * largest);
    for name in ["loss", "grad_norm", "entropy"] {
        let (ours, theirs) = (ours.metrics[name], theirs.metrics[name]);
        assert!((ours - theirs).abs() < 1e-5 * theirs.abs().max(0.01), "{name}: {ours} {theirs}");
    }
    assert_eq!(ours.metrics["rollouts"] * 3.0, theirs.metrics["rollouts"]);
    // What the sampler saw is what the trainer sees.
    assert!(ours.metrics["sampler_trainer_drift_max"] < 1e-4, "{:?}", ours.metrics);
    // As one line of turns it is another step.
    let mut line = batch;
    line.groups.iter_mut().flat_map(|group| &mut group.rollouts).for_each(|rollout| rollout.forks.clear());
    let line = trained(&line);
    assert!(line.metrics["sampler_trainer_drift_max"] > 1e-3, "{:?}", line.metrics);
    assert!(difference(&first_moment(&line), &expected) > 1e-3 * largest);
}

#[test]
fn every_loss_takes_forks() {
    let batch = forked();
    for loss in Loss::ALL {
        let algorithm = Algorithm { loss, ..Algorithm::default() };
        let trained = step(&mut TorchTrainer::new(), &initial(1), &batch, &algorithm).unwrap();
        assert!(trained.metrics["loss"].is_finite(), "{loss:?}");
    }
    let gae = Algorithm { advantage: Advantage::Gae, ..Algorithm::default() };
    step(&mut TorchTrainer::new(), &initial(1), &batch, &gae).unwrap();
}

#[test]
fn forks_that_are_none_are_refused_by_name() {
    let fork = |turn, follows| Fork { turn, follows };
    for wrong in [
        vec![fork(0, 0)],
        vec![fork(1, 0)],
        vec![fork(2, 1)],
        vec![fork(3, 3)],
        vec![fork(5, 0)],
        vec![fork(4, 0), fork(3, 0)],
        vec![fork(3, 0), fork(3, 1)],
        vec![fork(u32::MAX, u32::MAX)],
    ] {
        let mut batch = forked();
        batch.groups[0].rollouts[0].forks = wrong.clone();
        let refused = step(&mut TorchTrainer::new(), &initial(1), &batch, &once()).unwrap_err().to_string();
        assert!(refused.contains("rollout=") && refused.contains("forks="), "{wrong:?}: {refused}");
    }
}
