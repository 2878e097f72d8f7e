//! Turns that a leaving worker hands back are continued from where they were.

use millrace_coordinator::fold::{outstanding, state::Run};
use millrace_schemas::api::RunState;
use millrace_schemas::generate::{Finish, GenerateTask};
use millrace_schemas::outcome::Returned;
use millrace_schemas::{OutcomeBody, Task, TaskBody, TaskKey};

use super::harness::{Harness, turn};
use super::{spec, take, to_the_end};

/// The part of a turn that was sampled: `tokens`, all by this version.
fn part(tokens: &[u32], version: u64) -> OutcomeBody {
    let logprobs = vec![-0.5; tokens.len()];
    match turn(tokens, &logprobs, &[(version, tokens.len() as u32)]) {
        OutcomeBody::Generate(mut done) => {
            done.finish = Finish::Partial;
            let (reason, sampled) = ("its worker leaves".into(), Some(Box::new(done)));
            OutcomeBody::Returned(Returned { reason, sampled, begun: None })
        }
        other => other,
    }
}

fn asked(task: &Task) -> &GenerateTask {
    match &task.body {
        TaskBody::Generate(generate) => generate,
        other => panic!("{other:?}"),
    }
}

fn queued(harness: &Harness, key: TaskKey) -> Task {
    let task = harness.queue.values().find(|task| task.key == key).cloned();
    task.unwrap_or_else(|| panic!("{key} is not requeued"))
}

fn a_turn(harness: &mut Harness) -> Task {
    take(harness, |body| matches!(body, TaskBody::Generate(_)))
}

fn begun(run: &Run) -> usize {
    let groups = run.groups.values().flat_map(|group| &group.rollouts);
    groups.filter(|rollout| rollout.begun.is_some()).count()
}

#[test]
fn a_turn_handed_back_is_continued_by_the_next_worker() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_new_tokens = 4"), 0);
    let task = a_turn(&mut harness);
    harness.say(task.key, part(&[5, 6], 0));
    let requeued = queued(&harness, task.key);
    assert_eq!(requeued.request_fingerprint(), task.request_fingerprint(), "it is the same turn");
    let resolved = harness.resolved(&requeued);
    let sampled = asked(&resolved).sampled.as_deref().expect("the part is in the log");
    assert_eq!((sampled.tokens.as_slice(), asked(&resolved).context.len()), (&[5, 6][..], 2));
    assert_eq!(asked(&requeued).max_new_tokens, 4, "of the whole turn");
    // The next coordinator knows of it, too.
    let before = harness.run().clone();
    harness.restart();
    assert_eq!(*harness.run(), before);
    let put = outstanding::of(&harness.state);
    assert!(format!("{put:?}").contains(&format!("{:?}", asked(&requeued).begun)));
    // Handed back again, with a token more.
    harness.say(task.key, part(&[5, 6, 7], 0));
    let run = harness.run();
    assert_eq!((begun(run), run.books.returned, run.books.counters.handed_back_tokens), (1, 2, 3));
    // The queue holds the first task still. Without it, the longer part is named.
    harness.queue.retain(|_, other| other.key != task.key);
    harness.restart();
    let more = queued(&harness, task.key);
    assert_eq!(asked(&more).begun.map(|entry| entry.tokens), Some(3));
    harness.queue.retain(|_, other| other.key != task.key);
    harness.finish(&more);
    assert_eq!(begun(harness.run()), 0);
    let late = harness.run().books.late_outcomes;
    harness.say(task.key, part(&[5, 6], 0));
    assert_eq!(harness.run().books.late_outcomes, late + 1, "the turn is whole");
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_run_whose_every_turn_is_handed_back_trains_on_whole_turns() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_new_tokens = 4"), 7);
    for _ in 0..100_000 {
        let name = harness.queue.iter().find_map(|(name, task)| match &task.body {
            TaskBody::Generate(asked) if asked.begun.is_none() => Some(name.clone()),
            _ => None,
        });
        match name.and_then(|name| harness.queue.remove(&name)) {
            Some(task) => {
                let version = harness.policy.as_ref().map_or(0, |policy| policy.version.0);
                harness.say(task.key, part(&[3, 1], version));
            }
            None if !harness.work() => break,
            None => {}
        }
    }
    assert_eq!(harness.run().state, RunState::Finished);
    let mut turns = 0;
    for batch in harness.batches() {
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts) {
            for turn in &rollout.turns {
                let at = turn.at as usize;
                assert_eq!(turn.logprobs.len(), 3, "the part and a token");
                assert_eq!(rollout.tokens[at..at + 2], [3, 1]);
                assert_eq!(turn.segments.iter().map(|segment| segment.tokens).sum::<u32>(), 3);
                turns += 1;
            }
        }
    }
    assert!(turns > 20, "{turns}");
    assert!(harness.staleness.iter().all(|staleness| *staleness <= 1));
}

/// A rollout that waits while versions pass is not continued with tokens that are too old.
#[test]
fn a_part_that_has_become_too_old_is_left_out() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_new_tokens = 4"), 0);
    let task = a_turn(&mut harness);
    harness.say(task.key, part(&[5, 6], 0));
    let mut held = harness.queue.extract_if(.., |_, other| other.key == task.key).next();
    assert!(held.take().is_some_and(|(_, task)| asked(&task).begun.is_some()));
    for _ in 0..10_000 {
        let again = harness.queue.values().find(|other| other.key == task.key);
        if let Some(again) = again {
            assert!(again.version.0 >= 1 && asked(again).begun.is_none(), "{again:?}");
            to_the_end(&mut harness);
            assert_eq!(harness.run().state, RunState::Finished);
            return;
        }
        assert!(harness.work(), "the rollout is never stamped again");
    }
}

#[test]
fn a_part_that_could_not_be_trained_on_fails_its_rollout_and_no_other() {
    for (hostile, why) in [(part(&[5; 5], 0), "too many tokens"), (part(&[5, 6], 9), "a version to come")] {
        let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_new_tokens = 4"), 0);
        let task = a_turn(&mut harness);
        let failures = |harness: &Harness| {
            let groups = harness.run().groups.values().flat_map(|group| &group.rollouts);
            groups.map(|rollout| rollout.failures).sum::<u32>()
        };
        let before = failures(&harness);
        harness.say(task.key, hostile);
        assert_eq!((failures(&harness), begun(harness.run())), (before + 1, 0), "{why}");
        to_the_end(&mut harness);
        assert_eq!(harness.run().state, RunState::Finished, "{why}");
    }
    // As many tokens as a turn may have leave none to sample: the turn is sampled again from its beginning.
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_new_tokens = 4"), 0);
    let task = a_turn(&mut harness);
    harness.say(task.key, part(&[5; 4], 0));
    assert_eq!(asked(&queued(&harness, task.key)).begun, None);
}
