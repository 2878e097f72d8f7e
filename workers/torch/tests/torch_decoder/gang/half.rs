//! Gangs that compute in bf16: the weights in f32 are in shards like the moments, from every source
//! of a state.

use millrace_policy::LoadedVersion;
use millrace_schemas::submit::Algorithm;
use tch::{Kind, Tensor};

use super::books::{Books, How, batches, many_updates, members};
use crate::half::initial_half;

/// Steps one after another by formations of these sizes; with `fresh` members for each, who have
/// their state from files, or else by those who are left and newcomers. Gives all versions.
fn run(steps: &[(usize, &How)], fresh: bool) -> (Books, Vec<LoadedVersion>) {
    let (gang, zero) = Books::of(&initial_half(1));
    let batches = batches(&zero, &gang, steps.len() as u64, (4, 4));
    let (mut live, mut versions) = (Vec::new(), vec![zero]);
    for ((world, how), batch) in steps.iter().zip(&batches) {
        if fresh {
            live.clear();
        }
        live.truncate(*world);
        live.extend(members(world - live.len()));
        let base = versions[versions.len() - 1].clone();
        versions.push(gang.steps(&mut live, base, std::slice::from_ref(batch), how));
    }
    (gang, versions)
}

fn largest(x: &Tensor) -> f64 {
    f64::try_from(x.abs().max()).unwrap()
}

#[test]
fn a_gang_in_bf16_makes_the_step_that_one_makes_alone() {
    let algorithm = Algorithm { epochs: 1, ..Algorithm::default() };
    let how = How { algorithm, checkpoint: true };
    let norm = |x: &Tensor| f64::try_from(x.square().sum(Kind::Double).sqrt()).unwrap();
    let moments = |world| {
        let (books, versions) = run(&[(world, &how)], true);
        books.moments(&versions[1])
    };
    let alone = moments(1);
    for world in [2, 3] {
        // Backward rounds to bf16 in each member's share.
        for (ours, theirs) in moments(world).iter().zip(&alone) {
            let off = norm(&(ours - theirs)) / norm(theirs);
            assert!(off > 0.0 && off < 0.08, "world={world}: off by {off} of the norm");
        }
    }
}

#[test]
fn weights_in_f32_come_from_memory_from_members_and_from_shards() {
    let how = many_updates(true);
    for world in [1, 2, 3] {
        let steps = [(world, &how), (world, &how), (world, &how)];
        let last = |fresh| run(&steps, fresh).1.pop().unwrap().manifest;
        assert_eq!(last(false), last(true), "world={world}");
    }
    // Another size, and updates too small to be seen: the weights stay what they were to the last
    // bits of f32, which bf16 would have lost.
    let algorithm = Algorithm { learning_rate: 1e-9, weight_decay: 0.0, ..how.algorithm.clone() };
    let still = How { algorithm, checkpoint: true };
    for (fresh, worlds) in [(false, [1, 2, 3]), (true, [2, 3, 1])] {
        let (books, versions) = run(&[(worlds[0], &how), (worlds[1], &still), (worlds[2], &still)], fresh);
        let [first, last] = [1, 3].map(|number| books.masters(&versions[number]));
        let off = largest(&(&last - &first));
        assert!(off < 1e-6, "fresh={fresh}: off by {off}");
        assert!(largest(&(books.weights(&versions[3]) - &last)) > 1e-4);
    }
}

#[test]
fn a_dead_gang_in_bf16_redoes_its_steps_bit_for_bit() {
    let (how, end) = (many_updates(false), many_updates(true));
    for world in [1, 2] {
        let run = |dies: bool| {
            let (gang, zero) = Books::of(&initial_half(1));
            let batches = batches(&zero, &gang, 4, (4, 2));
            let mut live = members(world);
            let first = gang.steps(&mut live, zero, &batches[..1], &end);
            let third = gang.steps(&mut live, first, &batches[1..3], &how);
            if dies {
                live = members(world);
            }
            gang.steps(&mut live, third, &batches[3..], &end).manifest
        };
        assert_eq!(run(false), run(true), "world={world}");
    }
}
