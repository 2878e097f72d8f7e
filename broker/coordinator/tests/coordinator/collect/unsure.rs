//! What a state, a manifest or a killed writer leaves open is kept until it is known.

use millrace_schemas::train_shard::{DeltaRef, TrainShardDone};
use millrace_schemas::{Outcome, OutcomeBody, TaskKey};

use super::*;

fn submitted() -> Event {
    let text = r#"
        name = "run"
        steps = 9
        model = { kind = "scripted" }
        environment = { name = "counter", turns = 5 }
        weights = { newest = 2, checkpoint_every = 100 }
    "#;
    Event::Submitted(Box::new(from_toml(text).expect("a run file")))
}

/// The state of a log with these events of the run.
fn folded(events: impl IntoIterator<Item = Event>) -> State {
    let mut state = State::default();
    for (event, seq) in std::iter::once(submitted()).chain(events).zip(1..) {
        state.advance(seq, "run", event);
    }
    assert_eq!(state.ignored, 0);
    state
}

#[tokio::test]
async fn files_of_a_step_that_is_not_committed_are_kept() {
    let mut harness = StoreHarness::new();
    let mut blobs = Vec::new();
    for content in ["weights", "batch", "anchor", "changes"] {
        blobs.push(harness.blob(content).await);
    }
    let [weights, batch, anchor, changes] = blobs[..] else { unreachable!("four were stored") };
    let body = OutcomeBody::TrainShard(TrainShardDone {
        files: vec![FileRef::whole("model.safetensors", weights)],
        metrics: BTreeMap::new(),
    });
    let key = TaskKey::TrainShard { makes: 0, rank: 0, attempt: 0 };
    let worker = "w".parse().expect("a name");
    let outcome = Outcome { key, worker, busy_us: 10, request_fingerprint: None, body };
    let paused = Event::Paused { reason: "the rent is due".into(), remedy: "pay it".into() };
    let mut state = folded([paused, Event::Outcome(outcome)]);
    // The same of a rank whose gang is not done, and of the batch.
    let training = state.runs.get_mut(&run()).and_then(|run| run.training.as_mut()).expect("a step");
    assert!(training.manifest.is_some(), "the commit waits until the run is resumed");
    let delta = Some(DeltaRef { anchor, changes });
    training.shards.insert(1, vec![FileRef { name: "rank-1".into(), blob: weights, delta }]);
    training.batch = Some(batch);
    harness.known = Known::of(&state);
    assert_eq!(harness.take_all().await, 0);
    assert_eq!(harness.survey(HOUR).await.kept[&ObjectUse::Step].objects, 4);
    // Nothing needs them once the run is over.
    state.advance(4, "run", Event::Cancelled { reason: "enough".into() });
    harness.known = Known::of(&state);
    assert_eq!(harness.take_all().await, 4);
}

/// `millrace objects` has no coordinator's state, and a step may have ended since the snapshot.
#[tokio::test]
async fn the_state_at_the_end_of_the_log_has_what_came_after_the_snapshot() {
    let StoreHarness { broker, .. } = StoreHarness::new();
    let current = async || journal::current(&broker).await.expect("memory answers");
    assert_eq!(current().await, State::default());
    broker.append("run", &submitted()).await.expect("memory answers");
    assert!(current().await.runs.contains_key(&run()), "without any snapshot");
    journal::save(&broker, "one", 1, journal::encode_state(&folded([]))).await.expect("memory answers");
    let cancelled = Event::Cancelled { reason: "enough".into() };
    broker.append("run", &cancelled).await.expect("memory answers");
    let state = current().await;
    assert!(state.seq == 2 && state.runs[&run()].is_closed());
}

#[tokio::test]
async fn an_empty_log_collects_nothing_of_runs_it_does_not_know() {
    let lost = StoreHarness::new();
    lost.commit(0).await;
    lost.blob("rows").await;
    let save = async |harness: &StoreHarness, seq| {
        let content = journal::encode_state(&State { seq, ..State::default() });
        journal::save(&harness.broker, "one", seq, content).await.expect("memory answers");
    };
    let objects = lost.broker.objects().clone();
    let snapshots = async || objects.list("snapshots").await.expect("memory answers").len();
    save(&lost, 40).await;
    save(&lost, 50).await;
    // The streams are lost, or this server has another log.
    let mut other = StoreHarness::on(objects.clone());
    other.known = Known::of(&State::default());
    assert_eq!(other.take_all().await, 0);
    // Rows, and two snapshots. Manifest, weights and batch are kept as they would be.
    assert_eq!(other.survey(HOUR).await.kept[&ObjectUse::Unsure].objects, 3);
    // Its own snapshot makes none of those superfluous, and a later one does.
    save(&other, 1).await;
    assert_eq!((other.take_all().await, snapshots().await), (0, 3));
    save(&other, 45).await;
    assert_eq!((other.take_all().await, snapshots().await), (1, 3));
    // Of a run that the log knows, the same blob is collected.
    other.known = Known::of(&folded([]));
    assert_eq!((other.take_all().await, snapshots().await), (1, 3));
}

#[tokio::test]
async fn of_a_run_with_an_unreadable_manifest_nothing_is_removed() {
    let mut harness = StoreHarness::new();
    let mut committed = Vec::new();
    for version in 0..4 {
        committed.push(harness.commit(version).await);
    }
    harness.known.retentions.insert(run(), Some(NEWEST_TWO));
    let path = paths::manifest(&run(), PolicyVersion(3));
    let objects = harness.broker.objects();
    let sound = objects.get(&path).await.expect("memory answers").expect("it was created");
    objects.put(&path, sound.slice(..sound.len() / 2)).await.expect("memory answers");
    assert_eq!(harness.take_all().await, 0);
    let survey = harness.survey(HOUR).await;
    assert!(survey.wrong.len() == 1 && survey.wrong[0].contains("v3 of run=run"), "{:?}", survey.wrong);
    // Version 1's files, which retention drops; version 3's files and its batch.
    assert_eq!(survey.kept[&ObjectUse::Unsure].objects, 3);
    // Once it is restored, retention applies.
    harness.broker.objects().put(&path, sound).await.expect("memory answers");
    assert_eq!(harness.take_all().await, 1);
    assert!(!harness.has(&committed[1].0).await && harness.has(&committed[3].0).await);
}

#[tokio::test]
async fn a_removed_run_keeps_what_its_retention_says_and_no_more() {
    let mut harness = StoreHarness::new();
    for version in 0..6 {
        harness.commit(version).await;
    }
    let mut state = folded([Event::Cancelled { reason: "enough".into() }, Event::Archived]);
    assert!(state.runs.is_empty());
    // One that an older version archived has no retention.
    let archived = state.archived.get_mut(&run()).expect("it was archived");
    let retention = archived.retention.take();
    harness.known = Known::of(&state);
    assert_eq!(harness.take_all().await, 0);
    state.archived.get_mut(&run()).expect("it was archived").retention = retention;
    harness.known = Known::of(&state);
    assert_eq!(harness.take_all().await, 3);
}

#[tokio::test]
async fn what_a_killed_writer_left_in_a_folder_is_collected() {
    let folder = tempfile::tempdir().expect("a folder");
    let objects = Objects::open(&folder.path().display().to_string()).expect("a folder");
    let harness = StoreHarness::on(objects);
    let (weights, _) = harness.commit(0).await;
    let blob = folder.path().join(paths::blob(&run(), &weights.sha256));
    let staged = |suffix: &str| {
        let file = std::path::PathBuf::from(format!("{}{suffix}", blob.display()));
        std::fs::write(&file, "weig").expect("written");
        file
    };
    let (first, second, other) = (staged("#1"), staged("#27"), staged("#1b"));
    let notes = folder.path().join("notes#1");
    std::fs::write(&notes, "a person's").expect("written");
    // Such writes may go on for a while.
    let survey = harness.survey(HOUR).await;
    assert_eq!((survey.unreferenced.len(), survey.young.objects), (0, 2));
    assert_eq!(harness.take_all().await, 2);
    assert!(!first.exists() && !second.exists(), "nobody will end them");
    assert!(other.exists() && notes.exists() && harness.has(&weights).await, "these are no writes of ours");
    assert_eq!(harness.take_all().await, 0);
}
