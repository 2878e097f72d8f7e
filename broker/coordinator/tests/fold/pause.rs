//! A paused run: nothing of it is put, nothing is lost, and it ends as it would have.

use millrace_coordinator::fold::status;
use millrace_schemas::api::RunState;
use millrace_schemas::limits::{MAX_STEP_LETTERS, STEP_BACKOFF_MS};
use millrace_schemas::notice::Notice;
use millrace_schemas::train_shard::{TrainShardTask, TrainWork};
use millrace_schemas::{Event, PolicyVersion, Task, TaskBody, TaskKey};

use super::world::World;
use super::{spec, take, to_the_end};

const fn is_step(shard: &TrainShardTask) -> bool {
    matches!(shard.work, TrainWork::Step { .. })
}

fn pause(world: &mut World) {
    world.append(Event::Paused { reason: "the disk is full".into(), remedy: "free some".into() });
}

fn assert_ends(world: &mut World, what: &str) {
    to_the_end(world);
    let run = world.run();
    assert_eq!(run.state, RunState::Finished, "{what}: {:?}", run.reason);
    let ledger = status::ledger(run);
    assert_eq!((ledger.trained, ledger.in_flight), (6 * 3 * 2, 0), "{what}");
    let versions: Vec<u64> = run.books.evaluations.iter().map(|e| e.version).collect();
    assert_eq!(versions, [0, 4, 6], "{what}");
}

#[test]
fn a_paused_run_puts_nothing_and_takes_in_what_is_in_flight() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    take(&mut world, |body| matches!(body, TaskBody::Generate(_)));
    world.restart();
    let held: Vec<Task> = world.queue.values().cloned().collect();
    assert!(held.len() > 3, "{held:?}");
    pause(&mut world);
    assert!(world.queue.is_empty(), "workers are free for other runs");
    let status = status::status(world.run());
    assert_eq!((status.state, status.remedy.as_deref()), (RunState::Paused, Some("free some")));
    assert!(world.notices.iter().any(|notice| matches!(notice, Notice::Paused { .. })));
    let moved = world.run().groups.clone();
    for task in &held {
        world.finish(task);
        assert!(world.queue.is_empty(), "{}", task.key);
        assert!(status::ledger(world.run()).balanced());
    }
    assert_ne!(world.run().groups, moved, "outcomes are taken in");
    world.restart();
    assert!(world.queue.is_empty() && world.run().state == RunState::Paused);
    world.append(Event::Resumed);
    assert!(status::status(world.run()).remedy.is_none());
    assert_ends(&mut world, "resumed");
}

#[test]
fn a_pause_at_any_moment_loses_nothing() {
    for alpha in ["0.0", "1.0"] {
        let spec = spec(&format!("alpha = {alpha}"));
        let mut undisturbed = World::submit(&spec, 0);
        to_the_end(&mut undisturbed);
        for at in (1..undisturbed.log.len()).step_by(3) {
            let mut world = World::submit(&spec, 0);
            while world.log.len() < at {
                world.work();
            }
            // One task is in a worker's hands meanwhile.
            let held = world.queue.pop_first().map(|(_, task)| task);
            pause(&mut world);
            assert!(!world.work());
            held.iter().for_each(|task| world.finish(task));
            world.append(Event::Resumed);
            assert_ends(&mut world, &format!("alpha={alpha} at={at}"));
        }
    }
}

#[test]
fn a_run_that_is_over_or_goes_on_is_not_resumed() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    world.work();
    let before = world.run().clone();
    world.append(Event::Resumed);
    assert_eq!(*world.run(), before);
    to_the_end(&mut world);
    let before = world.run().clone();
    pause(&mut world);
    world.append(Event::Resumed);
    assert_eq!(*world.run(), before);
    assert!(world.queue.is_empty());
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    for _ in 0..60 {
        world.work();
    }
    pause(&mut world);
    world.append(Event::Cancelled { reason: "enough".into() });
    let status = status::status(world.run());
    assert_eq!((status.state, status.remedy), (RunState::Cancelled, None));
    assert!(status.ledger.balanced() && status.ledger.in_flight == 0);
}

/// A run whose step, commit or version 0 nobody can do.
fn broken(wanted: impl Fn(&TaskBody) -> bool) -> (World, TaskKey) {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    let task = take(&mut world, wanted);
    world.append(Event::DeadLetter {
        key: task.key,
        reason: "no space left on device".into(),
        exhausted: false,
    });
    let status = status::status(world.run());
    assert_eq!(status.state, RunState::Paused, "{}", task.key);
    assert!(status.reason.is_some_and(|reason| reason.contains("no space left on device")));
    assert!(status.remedy.is_some_and(|remedy| remedy.contains("millrace resume fold")));
    to_the_end(&mut world);
    world.restart();
    assert!(world.queue.is_empty(), "it waits for a person");
    (world, task.key)
}

#[test]
fn a_step_that_nobody_can_do_pauses_the_run_until_it_is_resumed_or_requeued() {
    for version in [0, 1] {
        for commits in [false, true] {
            let wanted = making(version, commits);
            let what = format!("version={version} commits={commits}");
            let (mut world, key) = broken(&wanted);
            world.append(Event::Requeued { key });
            assert_ends(&mut world, &what);
            let (mut world, key) = broken(&wanted);
            world.append(Event::Resumed);
            assert!(world.queue.values().all(|task| task.key != key), "{what}: under another name");
            // The letter of the former try, once more.
            world.append(Event::DeadLetter { key, reason: "late".into(), exhausted: false });
            assert_ends(&mut world, &what);
        }
    }
}

/// The tasks of a step's kind, or of commits, that make a version.
fn making(version: u64, commits: bool) -> impl Fn(&TaskBody) -> bool {
    move |body| match body {
        TaskBody::PublishWeights(publish) => commits && publish.manifest.version == PolicyVersion(version),
        TaskBody::TrainShard(shard) => !commits && is_step(shard) == (version > 0),
        TaskBody::Generate(_) | TaskBody::EnvStep(_) | TaskBody::Reward(_) => false,
    }
}

/// Its task is delivered too often.
fn wear_out(world: &mut World, wanted: impl Fn(&TaskBody) -> bool) -> TaskKey {
    let key = take(world, wanted).key;
    world.append(Event::DeadLetter { key, reason: "delivered 5 times".into(), exhausted: true });
    key
}

fn wait(world: &mut World, ms: u64) {
    let unix_ms = world.state.unix_ms + ms;
    world.append(Event::Tick { unix_ms });
}

#[test]
fn a_step_that_wears_out_is_begun_anew_by_itself() {
    for (version, commits) in [(0, false), (0, true), (1, false), (1, true)] {
        let what = format!("version={version} commits={commits}");
        let mut world = World::submit(&spec("alpha = 1.0"), 0);
        wait(&mut world, 1_000);
        let key = wear_out(&mut world, making(version, commits));
        assert!(world.run().state.works(), "{what}: nobody need do anything");
        to_the_end(&mut world);
        wait(&mut world, 2_000);
        assert!(world.queue.values().any(|task| making(version, commits)(&task.body)), "{what}: begun anew");
        assert!(world.queue.values().all(|task| task.key != key), "{what}: under another name");
        // The letter of the former try, once more.
        world.append(Event::DeadLetter { key, reason: "late".into(), exhausted: true });
        assert_ends(&mut world, &what);
    }
}

#[test]
fn a_task_that_is_done_after_its_letter_ends_the_wait() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    wait(&mut world, 1_000);
    let step = take(&mut world, making(1, false));
    world.append(Event::DeadLetter { key: step.key, reason: "delivered 5 times".into(), exhausted: true });
    world.finish(&step);
    let voids = world.run().books.void_steps;
    wait(&mut world, 60_000);
    assert_eq!(world.run().books.void_steps, voids, "nothing is begun anew");
    assert_ends(&mut world, "done all the same");
}

#[test]
fn a_step_that_wears_out_again_and_again_waits_for_a_person() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    wait(&mut world, 1_000);
    for letter in 1..MAX_STEP_LETTERS {
        wear_out(&mut world, making(1, false));
        assert!(world.run().state.works(), "letter={letter}");
        wait(&mut world, 1_999);
        let anew = world.run().worn.again.is_none();
        assert!(!anew, "letter={letter}: not at once");
        wait(&mut world, STEP_BACKOFF_MS.1);
    }
    // A pause and a resume in between begin the count anew; a letter that comes meanwhile is not forgotten.
    let mut resumed = World::submit(&spec("alpha = 1.0"), 0);
    let key = wear_out(&mut resumed, making(1, false));
    pause(&mut resumed);
    resumed.append(Event::Resumed);
    assert!(resumed.queue.values().all(|task| task.key != key), "under another name");
    assert_ends(&mut resumed, "resumed");

    wear_out(&mut world, making(1, false));
    let status = status::status(world.run());
    assert_eq!(status.state, RunState::Paused);
    assert!(status.reason.is_some_and(|reason| reason.contains("8 tries in a row")));
    world.append(Event::Resumed);
    assert_ends(&mut world, "resumed by a person");
}
