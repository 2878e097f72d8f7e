//! A turn that follows an earlier one than the last has the context of that one, in its task and in the
//! batch, also after a restart.

use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::{Fork, TaskKey};

use super::*;

/// Turn 2 follows none, and turn 3 follows turn 1.
const FOLLOWS: [Option<u32>; 4] = [None, Some(0), Some(1), None];
const FORKS: [Fork; 2] = [Fork { turn: 2, follows: 0 }, Fork { turn: 3, follows: 1 }];

/// Log entries of a turn's context, of all entries of its rollout: an observation and turn by turn.
const CONTEXTS: [&[usize]; 3] = [&[0], &[2], &[0, 1, 4]];

#[test]
fn a_fork_has_the_context_of_what_it_follows() {
    for restart_every in [0, 5] {
        let mut harness = Harness::submit(&spec("alpha = 1.0"), restart_every);
        harness.follows = FOLLOWS;
        let mut seen = BTreeSet::new();
        loop {
            for task in harness.queue.values() {
                let (TaskKey::Generate { rollout: id, turn }, TaskBody::Generate(generate)) =
                    (task.key, &task.body)
                else {
                    continue;
                };
                let Some(group) = harness.run().groups.get(&id.group) else { continue };
                let rollout = &group.rollouts[id.index as usize];
                // Of the rollout that it waits for.
                if rollout.attempt != id.attempt || rollout.turns.len() + 1 != turn as usize {
                    continue;
                }
                let context = CONTEXTS[turn as usize - 1].iter().map(|&at| rollout.trajectory[at]);
                assert_eq!(generate.prefix, context.collect::<Vec<_>>(), "turn={turn}");
                seen.insert(turn);
            }
            if !harness.work() {
                break;
            }
        }
        assert_eq!(harness.run().state, RunState::Finished);
        assert_eq!(seen, BTreeSet::from([1, 2, 3]));
        let mut longest = 0;
        for rollout in harness.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts) {
            let turns = rollout.turns.len();
            assert_eq!(rollout.forks, FORKS[..turns - 1]);
            let sequences = rollout.sequences().expect("well-formed forks");
            assert_eq!(sequences.len(), turns, "one, and one more for each fork");
            longest = longest.max(turns);
            if let [first, second, third] = &sequences[..] {
                let of = |at: usize| rollout.turns[at].at as usize + rollout.turns[at].logprobs.len();
                assert_eq!((first.own.clone(), second.own.clone()), (0..of(0), of(0)..of(1)));
                assert_eq!((third.before.len(), third.before[0].clone()), (1, 0..of(0)));
                assert_eq!(third.own, of(1)..of(2));
            }
        }
        assert_eq!(longest, 3);
    }
}

/// What follows all that was before is no fork, and a state without forks has no word of them.
#[test]
fn one_line_of_turns_is_kept_as_before() {
    let mut plain = Harness::submit(&spec("alpha = 1.0"), 0);
    let mut told = Harness::submit(&spec("alpha = 1.0"), 0);
    told.follows = [Some(0), Some(1), Some(2), None];
    for _ in 0..200 {
        assert!(plain.work() && told.work());
    }
    let forks = |harness: &Harness| {
        harness
            .run()
            .groups
            .values()
            .flat_map(|group| &group.rollouts)
            .map(|of| of.forks.len())
            .sum::<usize>()
    };
    assert_eq!((forks(&plain), forks(&told)), (0, 0));
    let state: State = decode("state", &encode(&plain.state)).expect("a state");
    assert!(!serde_json::to_string(&state).expect("JSON").contains("forks"));
}
