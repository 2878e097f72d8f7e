//! The first entry of the log about a task wins, and a returned task is requeued.

use millrace_schemas::api::RunState;
use millrace_schemas::outcome::Returned;
use millrace_schemas::{Event, OutcomeBody, TaskBody};

use super::harness::Harness;
use super::{spec, take, to_the_end};

#[test]
fn a_dead_letter_of_a_task_that_is_done_changes_nothing() {
    // Its acknowledgement was lost with the last delivery.
    for wanted in [
        |body: &TaskBody| matches!(body, TaskBody::Generate(_)),
        |body: &TaskBody| matches!(body, TaskBody::EnvStep(_)),
        |body: &TaskBody| matches!(body, TaskBody::Reward(_)),
    ] {
        let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
        let task = take(&mut harness, wanted);
        harness.finish(&task);
        let (before, notices) = (harness.run().clone(), harness.notices.len());
        harness.append(Event::DeadLetter {
            key: task.key,
            reason: "delivered too often".into(),
            exhausted: false,
        });
        assert_eq!(*harness.run(), before, "{}", task.key);
        assert_eq!(harness.notices.len(), notices);
    }
}

#[test]
fn a_returned_task_is_requeued_unless_it_is_done() {
    let returned = || OutcomeBody::Returned(Returned::undone("no space left on device".into()));
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    for _ in 0..400 {
        let Some((_, task)) = harness.queue.pop_first() else { break };
        harness.say(task.key, returned());
        let requeued = harness.queue.values().find(|other| other.key == task.key).cloned();
        let requeued = requeued.unwrap_or_else(|| panic!("{} is not requeued", task.key));
        assert_eq!(requeued.request_fingerprint(), task.request_fingerprint());
        harness.queue.retain(|_, other| other.key != task.key);
        harness.finish(&task);
        let before = harness.queue.len();
        harness.say(task.key, returned());
        assert_eq!(harness.queue.len(), before, "{}", task.key);
    }
    assert!(harness.run().books.returned > 50);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}
