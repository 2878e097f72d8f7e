//! A gradient of which each member keeps its part (ZeRO's second stage) makes the step that a whole
//! one makes.

use millrace_schemas::submit::{Advantage, Algorithm};

use super::books::{Books, How, batches, many_updates, members, same, sharded};

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
    let plain = run(&how);
    how.algorithm.offload_optimizer = true;
    assert_eq!(run(&sharded(&how)), plain, "with the optimiser's state in the host's memory");
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
