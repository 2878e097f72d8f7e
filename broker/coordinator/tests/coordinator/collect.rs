//! The collector removes objects that nothing refers to, and no others, for every kind of
//! reference.

mod unsure;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_coordinator::State;
use millrace_coordinator::shell::collect::{Known, ObjectUse, Survey, collect, damaged, survey};
use millrace_coordinator::shell::journal;
use millrace_queue::clock::SystemClock;
use millrace_queue::{Broker, MemoryQueue, Objects, TrimRule};
use millrace_schemas::blob::paths;
use millrace_schemas::image::{ImageManifest, ImageName, ImagePointer};
use millrace_schemas::limits::MAX_INLINE_EVENT_BYTES;
use millrace_schemas::publish_weights::{Manifest, Retention};
use millrace_schemas::submit::from_toml;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, Event, PolicyVersion, RunId};

const HOUR: Duration = Duration::from_secs(3_600);

/// Version 0 and the newest two keep their files.
const NEWEST_TWO: Retention = Retention { newest: 2, every: 0, checkpoint_every: 100, anchor_every: 1 };

fn run() -> RunId {
    "run".parse().expect("a name")
}

struct StoreHarness {
    broker: Broker,
    known: Known,
}

impl StoreHarness {
    fn new() -> Self {
        Self::on(Objects::memory())
    }

    /// An empty log on this store.
    fn on(objects: Objects) -> Self {
        let queue = MemoryQueue::new(Arc::new(SystemClock::new()));
        let known = Known { retentions: BTreeMap::from([(run(), None)]), ..Known::default() };
        Self { broker: Broker::new(Arc::new(queue), objects), known }
    }

    async fn blob(&self, content: &str) -> BlobRef {
        let content = Bytes::from(content.to_owned());
        self.broker.objects().put_blob(&run(), content).await.expect("memory answers")
    }

    async fn has(&self, blob: &BlobRef) -> bool {
        self.broker.objects().has_blob(&run(), blob).await.expect("memory answers")
    }

    /// Entries whose payloads are in the object store.
    async fn large_entries(&self, count: usize) {
        for number in 0..count {
            let reason = number.to_string().repeat(MAX_INLINE_EVENT_BYTES + 1);
            self.broker.append("run", &Event::Cancelled { reason }).await.expect("memory answers");
        }
    }

    async fn commit(&self, version: u64) -> (BlobRef, BlobRef) {
        let (weights, batch) =
            (self.blob(&format!("weights {version}")).await, self.blob(&format!("batch {version}")).await);
        let manifest = Manifest {
            run: run(),
            version: PolicyVersion(version),
            parent: None,
            batch: Some(batch),
            config: paths_sha(),
            files: vec![FileRef::whole("model.safetensors", weights)],
            metrics: BTreeMap::new(),
        };
        let path = paths::manifest(&run(), manifest.version);
        self.broker.objects().create(&path, manifest.to_json().into()).await.expect("memory answers");
        (weights, batch)
    }

    async fn survey(&self, age: Duration) -> Survey {
        survey(&self.broker, &self.known, age).await.expect("memory answers")
    }

    /// Collects everything unreferenced of any age. Returns how many objects were removed.
    async fn take_all(&self) -> u64 {
        // What is of this very millisecond is not older than now.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let survey = self.survey(Duration::ZERO).await;
        collect(&self.broker, &survey, || true).await.expect("memory answers").objects
    }
}

fn paths_sha() -> millrace_schemas::blob::Sha {
    millrace_schemas::blob::Sha::of(b"run file")
}

#[tokio::test]
async fn objects_that_log_segments_and_dead_letters_refer_to_are_kept() {
    let harness = StoreHarness::new();
    let rows = harness.blob("rows").await;
    let text = r#"
        name = "run"
        steps = 1
        model = { kind = "hugging_face", path = "m" }
        environment = { name = "dataset", path = "rows.jsonl", check = "number" }
        algorithm = { learning_rate = 1e-5 }
        rollout = { max_new_tokens = 8 }
    "#;
    let mut spec = from_toml(text).expect("a run file");
    let dataset = spec.environment.as_mut().and_then(|environment| environment.dataset_mut()).expect("rows");
    dataset.content = Some(millrace_schemas::dataset::DatasetContent { blob: rows, train: 1, held_out: 1 });
    harness.broker.append("run", &Event::Submitted(Box::new(spec))).await.expect("memory answers");
    harness.large_entries(4).await;
    let lost = harness.blob("of an attempt that came to nothing").await;
    assert_eq!(harness.take_all().await, 1);
    assert!(!harness.has(&lost).await && harness.has(&rows).await);
    // The same once a part of the log is in a segment.
    let runs = BTreeSet::from([run()]);
    let yes = || true;
    let rule = TrimRule { before: 4, stored_before_ns: u64::MAX, runs: &runs, entries: 3, may_act: &yes };
    harness.broker.trim_log(rule).await.expect("trimmed").expect("a segment");
    assert_eq!(harness.take_all().await, 0);
    let survey = harness.survey(HOUR).await;
    assert_eq!(survey.wrong, Vec::<String>::new());
    // Rows, four payloads, data and index of the segment.
    assert_eq!((survey.kept[&ObjectUse::Payload].objects, survey.kept[&ObjectUse::Segment].objects), (7, 1));
    let mut log = harness.broker.read_log(1).await.expect("read");
    let mut read = 0;
    while read < 5 {
        let entries = log.next(8).await.expect("read");
        assert!(entries.iter().all(|entry| entry.event.is_ok()), "{entries:?}");
        read += entries.len();
    }
}

#[tokio::test]
async fn files_that_retention_dropped_are_removed_and_retained_ones_are_kept() {
    let mut harness = StoreHarness::new();
    let mut committed = Vec::new();
    for version in 0..6 {
        committed.push(harness.commit(version).await);
    }
    // Of a run that nobody knows more of, everything stays.
    assert_eq!(harness.take_all().await, 0);
    harness.known.retentions.insert(run(), Some(NEWEST_TWO));
    assert_eq!(harness.take_all().await, 3);
    for (version, (weights, batch)) in committed.iter().enumerate() {
        assert_eq!(harness.has(weights).await, matches!(version, 0 | 4 | 5), "v{version}");
        assert!(harness.has(batch).await, "batches are the run's books");
    }
    assert_eq!(harness.survey(HOUR).await.wrong, Vec::<String>::new());
}

#[tokio::test]
async fn images_are_kept_by_their_names_alone() {
    let harness = StoreHarness::new();
    let objects = harness.broker.objects();
    let layer = async |text: &'static str| {
        objects.put_hashed(paths::layer, Bytes::from(text)).await.expect("memory answers")
    };
    let (shared, first, second) = (layer("shared").await, layer("first").await, layer("second").await);
    let mut names: Vec<ImageName> = Vec::new();
    for (name, top) in [("one", first), ("two", second)] {
        let manifest = ImageManifest { version: 1, layers: vec![shared, top], env: BTreeMap::new() };
        let manifest = objects.put_hashed(paths::image_manifest, manifest.to_json().into()).await;
        let manifest = manifest.expect("memory answers").sha256;
        let (name, pointer) =
            (name.parse().expect("a name"), ImagePointer { manifest, system: false, warm: 0 });
        objects.put(&paths::image_name(&name), pointer.to_json().into()).await.expect("memory answers");
        names.push(name);
    }
    let has = async |blob: &BlobRef| {
        objects.has_hashed(&paths::layer(&blob.sha256), blob).await.expect("memory answers")
    };
    assert_eq!(harness.take_all().await, 0);
    let survey = harness.survey(HOUR).await;
    assert_eq!((survey.kept[&ObjectUse::Image].objects, survey.kept[&ObjectUse::Layer].objects), (4, 3));
    // A name that goes takes what no other name needs.
    objects.delete(&paths::image_name(&names[0])).await.expect("memory answers");
    assert_eq!(harness.take_all().await, 2);
    assert!(has(&shared).await && has(&second).await && !has(&first).await);
    // A layer that differs is seen by its content, one that is missing by its name.
    objects.put(&paths::layer(&second.sha256), "sec0nd".into()).await.expect("memory answers");
    let damaged = damaged(&harness.broker, &harness.survey(HOUR).await).await.expect("memory answers");
    assert!(damaged.len() == 1 && damaged[0].contains(&second.sha256.to_string()), "{damaged:?}");
    objects.delete(&paths::layer(&shared.sha256)).await.expect("memory answers");
    let wrong = harness.survey(HOUR).await.wrong;
    assert!(wrong.len() == 1 && wrong[0].contains("the image two:latest"), "{wrong:?}");
    // While a name cannot be read, nothing of images is removed.
    layer("of nobody").await;
    objects.put(&paths::image_name(&names[1]), "{".into()).await.expect("memory answers");
    assert_eq!(harness.take_all().await, 0);
    let wrong = harness.survey(HOUR).await.wrong;
    assert!(wrong.len() == 1 && wrong[0].contains("push the image again"), "{wrong:?}");
}

#[tokio::test]
async fn young_foreign_and_rewritten_objects_are_kept() {
    let harness = StoreHarness::new();
    let young = harness.blob("about to be referred to").await;
    harness.broker.objects().put("elsewhere/notes.txt", "a person's".into()).await.expect("memory answers");
    let survey = harness.survey(HOUR).await;
    assert_eq!((survey.unreferenced.len(), survey.young.objects, survey.foreign.objects), (0, 1, 1));
    tokio::time::sleep(Duration::from_millis(5)).await;
    let survey = harness.survey(Duration::ZERO).await;
    assert_eq!(survey.unreferenced.len(), 1);
    // It is rewritten between the survey and the removal.
    let rewritten = Bytes::from("about to be referred to");
    harness
        .broker
        .objects()
        .put(&paths::blob(&run(), &young.sha256), rewritten)
        .await
        .expect("memory answers");
    let gone = collect(&harness.broker, &survey, || true).await.expect("memory answers");
    assert!(gone.objects == 0 && harness.has(&young).await);
    // One that may act no more removes nothing.
    tokio::time::sleep(Duration::from_millis(5)).await;
    let survey = harness.survey(Duration::ZERO).await;
    let gone = collect(&harness.broker, &survey, || false).await.expect("memory answers");
    assert!(gone.objects == 0 && harness.has(&young).await);
    assert_eq!(harness.take_all().await, 1);
}

#[tokio::test]
async fn missing_or_damaged_objects_are_reported_with_their_referrer() {
    let harness = StoreHarness::new();
    let (weights, batch) = harness.commit(0).await;
    let state = State { seq: 0, ..State::default() };
    journal::save(&harness.broker, "one", 0, journal::encode_state(&state)).await.expect("memory answers");
    assert_eq!(harness.survey(HOUR).await.wrong, Vec::<String>::new());
    let objects = harness.broker.objects();
    objects.put(&paths::blob(&run(), &batch.sha256), "batch X".into()).await.expect("memory answers");
    let survey = harness.survey(HOUR).await;
    assert!(survey.wrong.is_empty(), "as long as it was");
    let damaged = damaged(&harness.broker, &survey).await.expect("memory answers");
    assert!(damaged.len() == 1 && damaged[0].contains(&batch.sha256.to_string()), "{damaged:?}");
    objects.delete(&paths::blob(&run(), &weights.sha256)).await.expect("memory answers");
    let snapshot = &journal::snapshots(&harness.broker).await.expect("memory answers")[0];
    objects.delete(&snapshot.path).await.expect("memory answers");
    let wrong = harness.survey(HOUR).await.wrong;
    assert_eq!(wrong.len(), 2, "{wrong:?}");
    assert!(wrong.iter().any(|w| w.contains("v0 of run=run")), "{wrong:?}");
    assert!(wrong.iter().any(|w| w.contains("the key of the snapshots")), "{wrong:?}");
}
