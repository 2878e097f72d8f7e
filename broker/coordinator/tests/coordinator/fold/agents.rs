//! Environments that live on a worker: lost ones restart, and a call's own limits hold for its turn.

use millrace_coordinator::fold::intake::failures::MAX_HELD_OUT_LOSSES;
use millrace_coordinator::fold::status;
use millrace_schemas::api::RunState;
use millrace_schemas::env_step::{EnvAction, TurnLimits};
use millrace_schemas::outcome::Lost;
use millrace_schemas::{OutcomeBody, TaskBody};

use super::harness::Harness;
use super::{spec, take, to_the_end};

#[test]
fn a_lost_environment_restarts_its_rollout_and_uses_up_no_replacement() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_replacements = 0"), 0);
    let is_step =
        |body: &TaskBody| matches!(body, TaskBody::EnvStep(step) if step.action != EnvAction::Reset);
    let mut task = take(&mut harness, is_step);
    while task.evaluate {
        harness.finish(&task);
        task = take(&mut harness, is_step);
    }
    let id = task.key.rollout().expect("a rollout's task");
    // It comes twice: the first outcome counts.
    for _ in 0..2 {
        harness.say(task.key, OutcomeBody::Lost(Lost { reason: "its worker is gone".into() }));
    }
    let rollout = &harness.run().group(id.group).expect("the group goes on").rollouts[id.index as usize];
    assert_eq!((rollout.attempt, rollout.failures), (id.attempt + 1, 0));
    assert_eq!(status::ledger(harness.run()).dropped["lost"], 1);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_run_that_loses_every_rollout_is_paused_with_the_reason() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    for _ in 0..100_000 {
        if harness.run().state == RunState::Paused {
            return;
        }
        let task = take(&mut harness, |_| true);
        match task.body {
            TaskBody::EnvStep(_) if !task.evaluate => {
                harness.say(task.key, OutcomeBody::Lost(Lost { reason: "its worker is gone".into() }));
            }
            _ => harness.finish(&task),
        }
    }
    panic!("it restarts rollouts for ever");
}

/// It ends with the reason: no batch is cut meanwhile, and after the last step there is no other
/// rollout whose losses would pause the run.
#[test]
fn an_evaluation_that_loses_every_rollout_ends_with_the_reason() {
    for lost in [0, 4, 6] {
        let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
        let mut losses = 0;
        while let Some((_, task)) = harness.queue.pop_first() {
            let is_lost = task.evaluate && harness.run().version().0 == lost;
            if is_lost && matches!(task.body, TaskBody::EnvStep(_)) {
                losses += 1;
                assert!(losses <= 5 * MAX_HELD_OUT_LOSSES, "it restarts held-out rollouts for ever");
                harness.say(task.key, OutcomeBody::Lost(Lost { reason: "its worker is gone".into() }));
            } else {
                harness.finish(&task);
            }
        }
        let run = harness.run();
        assert_eq!(run.state, RunState::Finished, "v{lost}");
        let evaluation = run.books.evaluations.iter().find(|evaluation| evaluation.version == lost);
        let evaluation = evaluation.expect("it ended");
        assert_eq!((evaluation.prompts, evaluation.failed, evaluation.success), (0, 5, None));
        assert!(evaluation.reason.as_ref().is_some_and(|reason| reason.contains("its worker is gone")));
        assert!(status::ledger(run).balanced());
    }
}

#[test]
fn the_limits_of_a_call_hold_for_its_turn_alone() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nmax_new_tokens = 8\nstop_strings = []"), 0);
    let limits = TurnLimits { max_new_tokens: Some(3), stop: vec!["END".into()] };
    let reset = take(&mut harness, |body| matches!(body, TaskBody::EnvStep(_)));
    let rollout = reset.key.rollout();
    let OutcomeBody::EnvStep(mut shown) = harness.answer(&reset) else { unreachable!() };
    shown.limits = limits;
    harness.say(reset.key, OutcomeBody::EnvStep(shown));
    let mut expected = vec![(8, vec![]), (3, vec!["END".to_owned()])];
    while let Some((most, stop)) = expected.pop() {
        // Those of other rollouts are finished on the way; this one goes on after at least two turns.
        let next = loop {
            let next = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
            if next.key.rollout() == rollout {
                break next;
            }
            harness.finish(&next);
        };
        let TaskBody::Generate(generate) = &next.body else { unreachable!() };
        assert_eq!((generate.max_new_tokens, &generate.sampling.stop_strings), (most, &stop));
        harness.finish(&next);
        if expected.is_empty() {
            break;
        }
        let step = loop {
            let step = take(&mut harness, |body| matches!(body, TaskBody::EnvStep(_)));
            if step.key.rollout() == rollout {
                break step;
            }
            harness.finish(&step);
        };
        let OutcomeBody::EnvStep(mut shown) = harness.answer(&step) else { unreachable!() };
        (shown.done, shown.success) = (false, false);
        harness.say(step.key, OutcomeBody::EnvStep(shown));
    }
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}
