//! A run whose rollouts only fail is paused; an evaluation whose prompts all fail reports that.

use millrace_coordinator::fold::status;
use millrace_schemas::api::RunState;
use millrace_schemas::limits::FAILURES_IN_A_ROW;
use millrace_schemas::notice::Notice;
use millrace_schemas::{Event, TaskBody, TaskKey};

use super::harness::Harness;
use super::{spec, to_the_end};

/// Does all tasks, except those that `fails` accepts, which become dead letters. Returns their
/// number.
fn play(harness: &mut Harness, mut fails: impl FnMut(&Harness, &millrace_schemas::Task) -> bool) -> u64 {
    let mut letters = 0;
    for _ in 0..50_000 {
        let Some((_, task)) = harness.queue.pop_first() else { break };
        if fails(harness, &task) {
            letters += 1;
            harness.append(Event::DeadLetter {
                key: task.key,
                reason: "reward=NaN".into(),
                exhausted: false,
            });
        } else {
            harness.finish(&task);
        }
        assert!(status::ledger(harness.run()).balanced());
    }
    letters
}

#[test]
fn a_reward_that_always_fails_pauses_the_run() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let is_reward = |_: &Harness, task: &millrace_schemas::Task| {
        !task.evaluate && matches!(task.body, TaskBody::Reward(_))
    };
    let letters = play(&mut harness, is_reward);
    // Each rollout has two rewards.
    assert!((FAILURES_IN_A_ROW.0..2 * FAILURES_IN_A_ROW.0).contains(&letters), "{letters}");
    let status = status::status(harness.run());
    assert_eq!(status.state, RunState::Paused);
    assert!(
        status
            .reason
            .is_some_and(|reason| reason.contains("64 rollouts failed") && reason.contains("reward=NaN"))
    );
    assert!(status.remedy.is_some_and(|remedy| remedy.contains("millrace resume fold")));
    // It is repaired.
    harness.append(Event::Resumed);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_run_with_occasional_failures_continues() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let mut n = 0;
    play(&mut harness, |_, task| {
        n += 1;
        !task.evaluate && matches!(task.body, TaskBody::Reward(_)) && n % 4 == 0
    });
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_run_that_finishes_too_little_for_a_batch_is_paused_in_the_end() {
    // Of each group one is finished, and one fails.
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 0"), 0);
    let letters = play(&mut harness, |_, task| {
        !task.evaluate && matches!(task.key, TaskKey::Reward { rollout, .. } if rollout.index == 1)
    });
    assert_eq!(harness.run().state, RunState::Paused, "{letters}");
    assert!(harness.run().reason.as_ref().is_some_and(|reason| reason.contains("since the last step")));
}

#[test]
fn an_evaluation_whose_prompts_all_failed_has_no_success() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    play(&mut harness, |harness, task| {
        task.evaluate && matches!(task.body, TaskBody::EnvStep(_)) && harness.run().version().0 == 0
    });
    let run = harness.run();
    assert_eq!(run.state, RunState::Finished);
    let first = &run.books.evaluations[0];
    assert_eq!((first.success, first.reward, first.prompts, first.failed), (None, None, 0, 5));
    assert_eq!(first.reason.as_deref(), Some("reward=NaN"));
    let evaluated = |notice: &&Notice| {
        matches!(notice, Notice::Evaluated { success: None, failed: 5, reason: Some(_), .. })
    };
    assert_eq!(harness.notices.iter().filter(evaluated).count(), 1);
    let second = &run.books.evaluations[1];
    assert!(second.success.is_some() && second.failed == 0 && second.reason.is_none());
}
