//! The state holds decisions, not content: trajectories stay in the log, and tasks and batches
//! refer to them.

use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::publish_weights::PublishWeightsDone;
use millrace_schemas::{BlobRef, Task};

use super::*;

/// Observations and states are longer by this.
const PADDING: usize = 3_000;

/// A run in progress, with the largest task and the largest batch queued so far.
fn played(padding: usize) -> (Harness, usize, usize) {
    let mut harness = Harness::submit(&spec("alpha = 2.0\nstored_turns = { share = 0.5, keep = 4 }"), 0);
    harness.padding = padding;
    let mut largest = 0;
    while harness.run().version() < PolicyVersion(3) || harness.run().groups.is_empty() {
        let tasks = harness.queue.values().map(|task| encode(task).len());
        largest = largest.max(tasks.max().unwrap_or(0));
        assert!(harness.work());
    }
    let batch = harness.blobs.values().map(bytes::Bytes::len).max().expect("a batch was cut");
    (harness, largest, batch)
}

#[test]
fn snapshots_and_batches_do_not_grow_with_the_tokens() {
    let (short, _, short_batch) = played(0);
    let (long, _, long_batch) = played(PADDING);
    let (short, long) = (bytes(&short.state).len(), bytes(&long.state).len());
    assert!(long < short + short / 5, "a snapshot has bytes={long}, with short turns bytes={short}");
    assert!(long_batch < short_batch + short_batch / 5, "{long_batch} {short_batch}");
}

#[test]
fn a_task_grows_with_the_last_turn_and_not_with_the_context() {
    let (_, short, _) = played(0);
    let (_, long, _) = played(PADDING);
    assert!(long > PADDING, "what is new is carried");
    assert!(long < short + PADDING + PADDING / 4, "a task has bytes={long}, with short turns bytes={short}");
}

fn least(task: &Task) -> Option<u64> {
    task.prefix().iter().map(|entry| entry.seq).min()
}

#[test]
fn nothing_older_than_the_oldest_entry_is_referred_to() {
    for stored in ["", "\nstored_turns = { share = 0.5, keep = 2 }"] {
        let mut harness = Harness::submit(&spec(&format!("alpha = 1.0{stored}")), 0);
        let (mut known, mut furthest) = (BTreeSet::new(), 0);
        loop {
            let oldest = harness.state.oldest_entry(1);
            for task in harness.queue.values() {
                if known.insert((task.key, task.version))
                    && let Some(least) = least(task)
                {
                    assert!(oldest.is_some_and(|oldest| oldest <= least), "{oldest:?} {task:?}");
                }
            }
            let training = harness.run().training.iter().flat_map(|training| &training.groups);
            for rollout in training.flat_map(|(_, group)| &group.rollouts) {
                assert!(oldest.is_some_and(|oldest| oldest <= rollout.trajectory[0].seq));
            }
            furthest = furthest.max(oldest.unwrap_or(0));
            if !harness.work() {
                break;
            }
        }
        assert_eq!(harness.run().state, RunState::Finished);
        assert_eq!(harness.state.oldest_entry(1), None, "a run that is closed refers to nothing");
        assert!(!stored.is_empty() || furthest > harness.log.len() as u64 / 2, "it moves on: {furthest}");
    }
}

#[test]
fn a_snapshot_with_content_in_it_is_recognised() {
    let (harness, _, _) = played(0);
    let mut snapshot = serde_json::to_value(&harness.state).expect("a state");
    assert!(serde_json::from_value::<State>(snapshot.clone()).is_ok());
    let groups = snapshot["runs"][RUN]["groups"].as_object_mut().expect("groups");
    assert!(!groups.is_empty());
    for rollout in groups.values_mut().flat_map(|group| group["rollouts"].as_array_mut().expect("rollouts")) {
        let rollout = rollout.as_object_mut().expect("a rollout");
        rollout.remove("trajectory");
        rollout.insert("tokens".into(), vec![1, 2, 3].into());
    }
    assert!(serde_json::from_value::<State>(snapshot).is_err(), "the whole log is folded instead");
}

/// The log of an older program folds: its batches contained the tokens, so their hashes differ.
#[test]
fn a_commit_of_an_older_program_is_accepted() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let publish = take(
        &mut harness,
        |body| matches!(body, TaskBody::PublishWeights(publish) if publish.manifest.version.0 == 1),
    );
    let TaskBody::PublishWeights(asked) = &publish.body else { unreachable!() };
    let older = PublishWeightsDone {
        manifest: millrace_schemas::blob::Sha::of(b"older"),
        batch: Some(BlobRef::of(b"with all tokens in it")),
        created: true,
        bytes: 1,
        collected: Vec::new(),
    };
    assert_ne!(asked.manifest.batch, older.batch);
    harness.append(outcome(publish.key, None, OutcomeBody::PublishWeights(older)));
    assert_eq!(harness.run().version(), PolicyVersion(1));
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn older_outcomes_decode_and_their_fingerprints_do_not_count() {
    let event = outcome("g1r0a0-s1".parse().expect("a key"), Some(7), turn(&[1], &[-0.5], &[(0, 1)]));
    let mut value = serde_json::to_value(&event).expect("an event");
    let fields = value["outcome"].as_object_mut().expect("an outcome");
    let fingerprint = fields.remove("fingerprint").expect("it is written");
    fields.insert("answers".into(), fingerprint);
    let Event::Outcome(older) = serde_json::from_value(value).expect("it decodes") else { unreachable!() };
    assert_eq!(older.request_fingerprint, None);
    let decoded: Event = decode("event", &encode(&event)).expect("it decodes");
    assert_eq!(decoded, event);
}
