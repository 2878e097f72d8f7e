//! A paused run: none of its tasks is queued, nothing is lost, and it ends as it would have.

use millrace_coordinator::fold::status;
use millrace_schemas::api::RunState;
use millrace_schemas::limits::{MAX_STEP_LETTERS, STEP_BACKOFF_MS};
use millrace_schemas::notice::Notice;
use millrace_schemas::train_shard::{TrainShardTask, TrainWork};
use millrace_schemas::{Event, PolicyVersion, Task, TaskBody, TaskKey};

use super::harness::Harness;
use super::{spec, take, to_the_end};

const fn is_step(shard: &TrainShardTask) -> bool {
    matches!(shard.work, TrainWork::Step { .. })
}

fn pause(harness: &mut Harness) {
    harness.append(Event::Paused { reason: "the disk is full".into(), remedy: "free some".into() });
}

fn assert_ends(harness: &mut Harness, what: &str) {
    to_the_end(harness);
    let run = harness.run();
    assert_eq!(run.state, RunState::Finished, "{what}: {:?}", run.reason);
    let ledger = status::ledger(run);
    assert_eq!((ledger.trained, ledger.in_flight), (6 * 3 * 2, 0), "{what}");
    let versions: Vec<u64> = run.books.evaluations.iter().map(|e| e.version).collect();
    assert_eq!(versions, [0, 4, 6], "{what}");
}

#[test]
fn a_paused_run_queues_nothing_and_accepts_outcomes_in_flight() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    harness.restart();
    let held: Vec<Task> = harness.queue.values().cloned().collect();
    assert!(held.len() > 3, "{held:?}");
    pause(&mut harness);
    assert!(harness.queue.is_empty(), "workers are free for other runs");
    let status = status::status(harness.run());
    assert_eq!((status.state, status.remedy.as_deref()), (RunState::Paused, Some("free some")));
    assert!(harness.notices.iter().any(|notice| matches!(notice, Notice::Paused { .. })));
    let moved = harness.run().groups.clone();
    for task in &held {
        harness.finish(task);
        assert!(harness.queue.is_empty(), "{}", task.key);
        assert!(status::ledger(harness.run()).balanced());
    }
    assert_ne!(harness.run().groups, moved, "outcomes are applied");
    harness.restart();
    assert!(harness.queue.is_empty() && harness.run().state == RunState::Paused);
    harness.append(Event::Resumed);
    assert!(status::status(harness.run()).remedy.is_none());
    assert_ends(&mut harness, "resumed");
}

#[test]
fn a_pause_at_any_time_loses_nothing() {
    for alpha in ["0.0", "1.0"] {
        let spec = spec(&format!("alpha = {alpha}"));
        let mut undisturbed = Harness::submit(&spec, 0);
        to_the_end(&mut undisturbed);
        for at in (1..undisturbed.log.len()).step_by(3) {
            let mut harness = Harness::submit(&spec, 0);
            while harness.log.len() < at {
                harness.work();
            }
            // One task is in a worker's hands meanwhile.
            let held = harness.queue.pop_first().map(|(_, task)| task);
            pause(&mut harness);
            assert!(!harness.work());
            held.iter().for_each(|task| harness.finish(task));
            harness.append(Event::Resumed);
            assert_ends(&mut harness, &format!("alpha={alpha} at={at}"));
        }
    }
}

#[test]
fn a_run_that_is_over_or_running_is_not_resumed() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    harness.work();
    let before = harness.run().clone();
    harness.append(Event::Resumed);
    assert_eq!(*harness.run(), before);
    to_the_end(&mut harness);
    let before = harness.run().clone();
    pause(&mut harness);
    harness.append(Event::Resumed);
    assert_eq!(*harness.run(), before);
    assert!(harness.queue.is_empty());
}

#[test]
fn a_paused_run_can_be_cancelled() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    for _ in 0..60 {
        harness.work();
    }
    pause(&mut harness);
    harness.append(Event::Cancelled { reason: "enough".into() });
    let status = status::status(harness.run());
    assert_eq!((status.state, status.remedy), (RunState::Cancelled, None));
    assert!(status.ledger.balanced() && status.ledger.in_flight == 0);
}

/// A run whose step, commit or version 0 becomes a dead letter.
fn broken(wanted: impl Fn(&TaskBody) -> bool) -> (Harness, TaskKey) {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let task = take(&mut harness, wanted);
    harness.append(Event::DeadLetter {
        key: task.key,
        reason: "no space left on device".into(),
        exhausted: false,
    });
    let status = status::status(harness.run());
    assert_eq!(status.state, RunState::Paused, "{}", task.key);
    assert!(status.reason.is_some_and(|reason| reason.contains("no space left on device")));
    assert!(status.remedy.is_some_and(|remedy| remedy.contains("millrace resume fold")));
    to_the_end(&mut harness);
    harness.restart();
    assert!(harness.queue.is_empty(), "it waits for a person");
    (harness, task.key)
}

#[test]
fn a_poisoned_step_pauses_the_run_until_it_is_resumed_or_requeued() {
    for version in [0, 1] {
        for commits in [false, true] {
            let wanted = making(version, commits);
            let what = format!("version={version} commits={commits}");
            let (mut harness, key) = broken(&wanted);
            harness.append(Event::Requeued { key });
            assert_ends(&mut harness, &what);
            let (mut harness, key) = broken(&wanted);
            harness.append(Event::Resumed);
            assert!(harness.queue.values().all(|task| task.key != key), "{what}: under another name");
            // The letter of the former try, once more.
            harness.append(Event::DeadLetter { key, reason: "late".into(), exhausted: false });
            assert_ends(&mut harness, &what);
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

/// Its task exhausts its deliveries.
fn step_exhausted(harness: &mut Harness, wanted: impl Fn(&TaskBody) -> bool) -> TaskKey {
    let key = take(harness, wanted).key;
    harness.append(Event::DeadLetter { key, reason: "delivered 5 times".into(), exhausted: true });
    key
}

fn wait(harness: &mut Harness, ms: u64) {
    let unix_ms = harness.state.unix_ms + ms;
    harness.append(Event::Tick { unix_ms });
}

#[test]
fn a_step_that_exhausts_its_deliveries_restarts_by_itself() {
    for (version, commits) in [(0, false), (0, true), (1, false), (1, true)] {
        let what = format!("version={version} commits={commits}");
        let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
        wait(&mut harness, 1_000);
        let key = step_exhausted(&mut harness, making(version, commits));
        assert!(harness.run().state.works(), "{what}: no person need act");
        to_the_end(&mut harness);
        wait(&mut harness, 2_000);
        assert!(
            harness.queue.values().any(|task| making(version, commits)(&task.body)),
            "{what}: it restarts"
        );
        assert!(harness.queue.values().all(|task| task.key != key), "{what}: under another name");
        // The letter of the former try, once more.
        harness.append(Event::DeadLetter { key, reason: "late".into(), exhausted: true });
        assert_ends(&mut harness, &what);
    }
}

#[test]
fn an_outcome_after_the_dead_letter_cancels_the_restart() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    wait(&mut harness, 1_000);
    let step = take(&mut harness, making(1, false));
    harness.append(Event::DeadLetter { key: step.key, reason: "delivered 5 times".into(), exhausted: true });
    harness.finish(&step);
    let voids = harness.run().books.void_steps;
    wait(&mut harness, 60_000);
    assert_eq!(harness.run().books.void_steps, voids, "nothing restarts");
    assert_ends(&mut harness, "done all the same");
}

#[test]
fn a_step_that_repeatedly_exhausts_its_deliveries_waits_for_a_person() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    wait(&mut harness, 1_000);
    for letter in 1..MAX_STEP_LETTERS {
        step_exhausted(&mut harness, making(1, false));
        assert!(harness.run().state.works(), "letter={letter}");
        wait(&mut harness, 1_999);
        let restarted = harness.run().exhausted.restart.is_none();
        assert!(!restarted, "letter={letter}: not at once");
        wait(&mut harness, STEP_BACKOFF_MS.1);
    }
    // A pause and a resume in between reset the count; a dead letter that arrives meanwhile still
    // counts.
    let mut resumed = Harness::submit(&spec("alpha = 1.0"), 0);
    let key = step_exhausted(&mut resumed, making(1, false));
    pause(&mut resumed);
    resumed.append(Event::Resumed);
    assert!(resumed.queue.values().all(|task| task.key != key), "under another name");
    assert_ends(&mut resumed, "resumed");

    step_exhausted(&mut harness, making(1, false));
    let status = status::status(harness.run());
    assert_eq!(status.state, RunState::Paused);
    assert!(status.reason.is_some_and(|reason| reason.contains("8 tries in a row")));
    harness.append(Event::Resumed);
    assert_ends(&mut harness, "resumed by a person");
}

/// How a worker buries a commit that cannot be done.
const MISSING: &str =
    "failed to commit v1: its file model.safetensors is not in the object store (tried 5 times)";

#[test]
fn a_step_whose_files_are_gone_is_made_again() {
    for version in [0, 1] {
        let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
        wait(&mut harness, 1_000);
        let lose = |harness: &mut Harness| {
            let key = take(harness, making(version, true)).key;
            harness.append(Event::DeadLetter { key, reason: MISSING.into(), exhausted: true });
        };
        let is_made = |harness: &Harness| {
            let mut queued = harness.queue.values();
            queued.any(|task| making(version, false)(&task.body))
        };
        lose(&mut harness);
        wait(&mut harness, 2_000);
        assert!(!is_made(&harness), "v{version}: the files may be at another replica of the store");
        lose(&mut harness);
        assert!(is_made(&harness), "v{version}: they are gone");
        harness.restart();
        assert_ends(&mut harness, "made again");
        // A run that an older version paused for it.
        let mut paused = Harness::submit(&spec("alpha = 1.0"), 0);
        let key = take(&mut paused, making(version, true)).key;
        paused.append(Event::DeadLetter { key, reason: MISSING.into(), exhausted: false });
        paused.append(Event::Resumed);
        assert!(is_made(&paused), "v{version}: a person resumed it");
        assert_ends(&mut paused, "resumed by a person");
    }
}
