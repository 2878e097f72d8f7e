//! The state when no member has it: a checkpoint's shards, after which the steps since are redone.

use super::books::{Books, How, batches, many_updates, members, same, weights_sharded};

#[test]
fn a_gang_of_another_size_continues_from_a_checkpoint() {
    changes_size(&many_updates(true));
}

#[test]
fn a_gang_of_another_size_continues_with_sharded_weights() {
    changes_size(&weights_sharded(&many_updates(true)));
}

fn changes_size(how: &How) {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 3, (4, 4));
    let reference = alone.steps(&mut members(1), zero, &batches, how);
    for (before, after) in [(1, 2), (2, 1), (2, 3), (4, 2)] {
        let (gang, zero) = Books::new(1);
        let middle = gang.steps(&mut members(before), zero, &batches[..2], how);
        let made = gang.steps(&mut members(after), middle, &batches[2..], how);
        same((&gang, &made), (&alone, &reference), how, &format!("{before} to {after}"));
    }
}

#[test]
fn a_gang_of_the_same_size_continues_bit_for_bit() {
    for world in [1, 3] {
        let run = |fresh: bool| {
            let (gang, zero) = Books::new(1);
            let batches = batches(&zero, &gang, 3, (4, 4));
            let mut first = members(world);
            let middle = gang.steps(&mut first, zero, &batches[..2], &many_updates(true));
            let mut second = if fresh { members(world) } else { first };
            gang.steps(&mut second, middle, &batches[2..], &many_updates(true)).manifest
        };
        assert_eq!(run(true), run(false), "world={world}");
    }
}

#[test]
fn all_dead_restart_from_the_last_checkpoint_replay_same_weights() {
    all_dead(|how| how);
}

#[test]
fn all_dead_restart_with_sharded_weights_replay_same_weights() {
    all_dead(|how| weights_sharded(&how));
}

fn all_dead(of: impl Fn(How) -> How) {
    let many_updates = |checkpoint| of(many_updates(checkpoint));
    for world in [1, 2] {
        let run = |dies: bool| {
            let (gang, zero) = Books::new(1);
            let batches = batches(&zero, &gang, 6, (4, 2));
            let mut live = members(world);
            let checkpoint = gang.steps(&mut live, zero, &batches[..2], &many_updates(true));
            let second = gang.steps(&mut live, checkpoint, &batches[2..3], &many_updates(false));
            let third = gang.steps(&mut live, second.clone(), &batches[3..5], &many_updates(false));
            if dies {
                live = members(world);
                // Retention keeps the newest versions and the checkpoint.
                gang.collect(&second, "none");
                gang.taken();
            }
            let last = gang.steps(&mut live, third, &batches[5..], &many_updates(true));
            (last.manifest, gang.taken())
        };
        let ((undisturbed, _), (again, read)) = (run(false), run(true));
        assert_eq!(undisturbed, again, "world={world}");
        let count = |name: &str| read.iter().filter(|file| file.starts_with(name)).count();
        assert_eq!(count("batch"), 3 * world, "{read:?}");
        assert_eq!(count("optimizer"), world * world, "{read:?}");
        // The weights of the checkpoint and of the base: one member reads them, and the others get them from it.
        assert_eq!(count("model"), 2, "{read:?}");
    }
}

#[test]
fn version_zero_is_a_checkpoint_and_another_size_replays_to_rounding() {
    let (alone, zero) = Books::new(1);
    let batches = batches(&zero, &alone, 4, (4, 2));
    let how = many_updates(false);
    let end = many_updates(true);
    let mut one = members(1);
    let third = alone.steps(&mut one, zero, &batches[..3], &how);
    let reference = alone.steps(&mut one, third, &batches[3..], &end);
    let (gang, zero) = Books::new(1);
    let third = gang.steps(&mut members(2), zero, &batches[..3], &how);
    // The replay of a gang of two by one member differs in rounding; the committed weights count.
    let made = gang.steps(&mut members(1), third, &batches[3..], &end);
    same((&gang, &made), (&alone, &reference), &how, "2 to 1");
}
