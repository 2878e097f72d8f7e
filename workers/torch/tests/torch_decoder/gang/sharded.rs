//! A gradient of which each member keeps its part (ZeRO's second stage) makes the step that a whole
//! one makes.

use std::time::Duration;

use millrace_policy::PolicyError;
use millrace_schemas::submit::{Advantage, Algorithm};

use super::books::{Books, How, batches, many_updates, members, same};
use super::ranks::{PATIENCE, assignments};

/// The same with the gradient sharded.
fn sharded(how: &How) -> How {
    How { algorithm: Algorithm { shard_gradients: true, ..how.algorithm.clone() }, ..how.clone() }
}

#[test]
fn a_sharded_gradient_makes_the_step_that_one_makes_alone() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 3, (4, 4));
    let how = many_updates(true);
    let reference = alone.steps(&mut members(1), zero, &batches, &how);
    // With one token for a forward, members have unlike numbers of them.
    for (world, tokens_per_microbatch, recompute) in
        [(2, 16_384, false), (2, 100, true), (3, 1, true), (4, 1, false), (1, 100, true)]
    {
        let algorithm = Algorithm { tokens_per_microbatch, recompute, ..how.algorithm.clone() };
        let (gang, zero) = Books::new(1);
        let how = sharded(&How { algorithm, checkpoint: true });
        let made = gang.steps(&mut members(world), zero, &batches, &how);
        let what = format!("world={world} tokens={tokens_per_microbatch} recompute={recompute}");
        same((&gang, &made), (&alone, &reference), &how, &what);
    }
}

#[test]
fn one_forward_an_update_gives_the_bytes_of_a_whole_gradient() {
    let run = |how: &How| {
        let (gang, zero) = Books::new(1);
        let batches = batches(&zero, &gang, 2, (4, 4));
        gang.steps(&mut members(3), zero, &batches, how).manifest
    };
    let mut how = many_updates(true);
    assert_eq!(run(&sharded(&how)), run(&how));
    how.algorithm.advantage = Advantage::Gae;
    assert_eq!(run(&sharded(&how)), run(&how), "with a critic");
}

#[test]
fn members_change_between_whole_and_sharded() {
    // A trainer serves runs of both kinds, one after another.
    let whole = many_updates(true);
    let split = sharded(&whole);
    let run = |order: [&How; 3]| {
        let (gang, zero) = Books::new(1);
        let batches = batches(&zero, &gang, 3, (4, 4));
        let mut live = members(2);
        let steps = order.into_iter().zip(&batches);
        let step = |base, (how, batch)| gang.steps(&mut live, base, std::slice::from_ref(batch), how);
        steps.fold(zero, step).manifest
    };
    let plain = run([&whole; 3]);
    assert_eq!(run([&whole, &split, &whole]), plain);
    assert_eq!(run([&split, &whole, &split]), plain);
}

#[test]
fn a_sharded_step_that_breaks_off_leaves_nothing_behind() {
    let mut how = sharded(&many_updates(true));
    how.algorithm.tokens_per_microbatch = 1;
    let (calm, zero) = Books::new(1);
    let batches = batches(&zero, &calm, 3, (4, 4));
    let undisturbed = calm.steps(&mut members(2), zero, &batches, &how);

    let (gang, zero) = Books::new(1);
    let mut live = members(2);
    let second = gang.steps(&mut live, zero, &batches[..2], &how);
    gang.taken();
    // The first update moves the weights so far that the second has no finite gradient.
    let algorithm = Algorithm { learning_rate: 1e30, warmup_steps: 1, ..how.algorithm.clone() };
    let wild = How { algorithm, checkpoint: true };
    let (_, made) = gang.attempt(&mut live, &assignments(2, PATIENCE), &second, &batches[2], &wild);
    assert!(made.iter().all(|made| matches!(made, Err(PolicyError::Impossible(_)))), "{made:?}");
    // One is cancelled before its first forward, while the other's reductions are under way.
    let stopped = assignments(2, Duration::from_secs(2));
    stopped[1].cancel.cancel();
    let (_, made) = gang.attempt(&mut live, &stopped, &second, &batches[2], &how);
    assert!(made.iter().any(|made| matches!(made, Err(PolicyError::Void(_)))), "{made:?}");

    let last = gang.steps(&mut live, second, &batches[2..], &how);
    assert_eq!(gang.taken(), Vec::<String>::new(), "their states are still there");
    assert_eq!(last.manifest, undisturbed.manifest);
}
