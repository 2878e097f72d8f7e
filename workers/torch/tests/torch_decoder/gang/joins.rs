//! Members that come and go between steps, and steps that are void: the state of each member
//! afterwards, and its source.

use std::time::Duration;

use millrace_policy::{LoadedVersion, PolicyError};
use millrace_schemas::submit::Algorithm;
use millrace_schemas::train_shard::Batch;

use super::books::{Books, How, batches, many_updates, members, same, sharded, weights_sharded};
use super::ranks::{PATIENCE, assignments};

/// Four steps of one member, the last to a checkpoint, and where they lead.
fn undisturbed(how: &How, end: &How) -> (Books, Vec<Batch>, LoadedVersion) {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 4, (4, 4));
    let mut one = members(1);
    let third = alone.steps(&mut one, zero, &batches[..3], how);
    let reference = alone.steps(&mut one, third, &batches[3..], end);
    (alone, batches, reference)
}

#[test]
fn newcomers_get_weights_and_state_from_the_members() {
    newcomers(&many_updates(false), &many_updates(true));
}

#[test]
fn newcomers_get_sharded_weights_from_the_members() {
    newcomers(&weights_sharded(&many_updates(false)), &weights_sharded(&many_updates(true)));
}

fn newcomers(how: &How, end: &How) {
    let (alone, batches, reference) = undisturbed(how, end);

    let (gang, zero) = Books::new(1);
    let mut live = members(1);
    let first = gang.steps(&mut live, zero, &batches[..1], how);
    gang.taken();
    live.extend(members(1));
    let second = gang.steps(&mut live, first, &batches[1..2], how);
    // The newcomer is the first this time, so that ranks change too.
    live.insert(0, members(1).remove(0));
    let third = gang.steps(&mut live, second, &batches[2..3], how);
    let last = gang.steps(&mut live, third, &batches[3..], end);
    assert_eq!(gang.taken(), Vec::<String>::new(), "all came from members");
    same((&gang, &last), (&alone, &reference), how, "1 to 2 to 3");
}

#[test]
fn a_shrunk_gang_continues_with_the_remaining_members() {
    shrinks(|how| how.clone());
}

#[test]
fn a_shrunk_gang_continues_with_sharded_weights() {
    shrinks(weights_sharded);
}

fn shrinks(of: impl Fn(&How) -> How) {
    let [how, end] = [false, true].map(|checkpoint| of(&many_updates(checkpoint)));
    let (alone, batches, reference) = undisturbed(&how, &end);
    // A member leaves after a checkpoint: its part is in a file. Or without one: the steps are
    // redone.
    for checkpoint in [true, false] {
        let (gang, zero) = Books::new(1);
        let mut live = members(3);
        let third = gang.steps(&mut live, zero, &batches[..3], &of(&many_updates(checkpoint)));
        live.remove(1);
        gang.taken();
        let last = gang.steps(&mut live, third, &batches[3..], &end);
        let read = gang.taken();
        assert_eq!(read.iter().any(|name| name == "batch"), !checkpoint, "{read:?}");
        same((&gang, &last), (&alone, &reference), &how, &format!("3 to 2, checkpoint={checkpoint}"));
    }
}

#[test]
fn a_step_that_breaks_off_leaves_nothing_behind() {
    breaks_off(&many_updates(true));
}

#[test]
fn a_sharded_step_that_breaks_off_leaves_nothing_behind() {
    let mut how = sharded(&many_updates(true));
    // A member reduces after each of its forwards, and may be stopped between two.
    how.algorithm.tokens_per_microbatch = 1;
    breaks_off(&how);
}

#[test]
fn a_step_of_sharded_weights_that_breaks_off_leaves_nothing_behind() {
    let mut how = weights_sharded(&many_updates(true));
    how.algorithm.tokens_per_microbatch = 1;
    breaks_off(&how);
}

fn breaks_off(how: &How) {
    let (calm, zero) = Books::new(1);
    let batches = batches(&zero, &calm, 3, (4, 4));
    let undisturbed = calm.steps(&mut members(2), zero, &batches, how);

    let (gang, zero) = Books::new(1);
    let mut live = members(2);
    let second = gang.steps(&mut live, zero, &batches[..2], how);
    gang.taken();
    // The first update moves the weights so far that the second has no finite gradient.
    let algorithm = Algorithm { learning_rate: 1e30, warmup_steps: 1, ..how.algorithm.clone() };
    let wild = How { algorithm, checkpoint: true };
    let (_, made) = gang.attempt(&mut live, &assignments(2, PATIENCE), &second, &batches[2], &wild);
    for made in made {
        let error = made.unwrap_err();
        assert!(matches!(&error, PolicyError::Impossible(why) if why.contains("update=")), "{error:?}");
    }
    // One of them is cancelled, the other loses it.
    let stopped = assignments(2, Duration::from_secs(2));
    stopped[1].cancel.cancel();
    let (_, made) = gang.attempt(&mut live, &stopped, &second, &batches[2], how);
    assert!(made.iter().any(|made| matches!(made, Err(PolicyError::Void(_)))), "{made:?}");

    let last = gang.steps(&mut live, second, &batches[2..], how);
    assert_eq!(gang.taken(), Vec::<String>::new(), "their states are still there");
    assert_eq!(last.manifest, undisturbed.manifest);
}

#[test]
fn members_at_different_steps_make_none() {
    let (gang, zero) = Books::new(1);
    let batches = batches(&zero, &gang, 2, (4, 2));
    let mut live = members(2);
    let first = gang.steps(&mut live, zero.clone(), &batches[..1], &many_updates(true));
    let assignments = assignments(2, PATIENCE);
    let (left, right) = live.split_at_mut(1);
    let made: Vec<PolicyError> = std::thread::scope(|scope| {
        let books = &gang;
        let (assignments, batches, zero, first) = (&assignments, &batches, &zero, &first);
        let how = many_updates(true);
        let one = {
            let how = how.clone();
            scope.spawn(move || {
                books.attempt(left, &assignments[..1], zero, &batches[0], &how).1.remove(0).unwrap_err()
            })
        };
        let other = scope.spawn(move || {
            let batch = &batches[1];
            let mut pair = members(2);
            std::mem::swap(&mut pair[1], &mut right[0]);
            books.attempt(&mut pair, &assignments[1..], first, batch, &how).1.remove(0).unwrap_err()
        });
        vec![one.join().unwrap(), other.join().unwrap()]
    });
    assert!(
        made.iter().any(|error| matches!(error, PolicyError::Void(why) if why.contains("disagree"))),
        "{made:?}"
    );
    assert!(made.iter().all(|error| matches!(error, PolicyError::Void(_))), "{made:?}");
}
