//! The first entry of the log about a task wins, and a task that is given back is put again.

use millrace_schemas::api::RunState;
use millrace_schemas::outcome::Returned;
use millrace_schemas::{Event, OutcomeBody, TaskBody};

use super::world::World;
use super::{spec, take, to_the_end};

#[test]
fn a_dead_letter_of_a_task_that_is_done_changes_nothing() {
    // Its acknowledgement was lost with the last delivery.
    for wanted in [
        |body: &TaskBody| matches!(body, TaskBody::Generate(_)),
        |body: &TaskBody| matches!(body, TaskBody::EnvStep(_)),
        |body: &TaskBody| matches!(body, TaskBody::Reward(_)),
    ] {
        let mut world = World::submit(&spec("alpha = 1.0"), 0);
        let task = take(&mut world, wanted);
        world.finish(&task);
        let (before, notices) = (world.run().clone(), world.notices.len());
        world.append(Event::DeadLetter {
            key: task.key,
            reason: "delivered too often".into(),
            exhausted: false,
        });
        assert_eq!(*world.run(), before, "{}", task.key);
        assert_eq!(world.notices.len(), notices);
    }
}

#[test]
fn a_task_that_is_given_back_is_put_again_unless_it_is_done() {
    let returned = || OutcomeBody::Returned(Returned { reason: "no space left on device".into() });
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    for _ in 0..400 {
        let Some((_, task)) = world.queue.pop_first() else { break };
        world.say(task.key, returned());
        let again = world.queue.values().find(|other| other.key == task.key).cloned();
        let again = again.unwrap_or_else(|| panic!("{} is put again", task.key));
        assert_eq!(again.question(), task.question());
        world.queue.retain(|_, other| other.key != task.key);
        world.finish(&task);
        let before = world.queue.len();
        world.say(task.key, returned());
        assert_eq!(world.queue.len(), before, "{}", task.key);
    }
    assert!(world.run().books.returned > 50);
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
}
