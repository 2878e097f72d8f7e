use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use millrace_schemas::publish_weights::Retention;
use millrace_schemas::train_shard::{DeltaRef, FileRef};
use millrace_schemas::{BlobRef, PolicyVersion, RunId};

use super::*;

mod requests;

fn run() -> RunId {
    "lake".parse().unwrap()
}

/// A version with these files, all stored.
async fn version(objects: &Objects, version: u64, files: &[(&str, &str)]) -> Manifest {
    let mut refs = Vec::new();
    for (name, content) in files {
        let blob = objects.put_blob(&run(), Bytes::from((*content).to_owned())).await.unwrap();
        refs.push(FileRef::whole(*name, blob));
    }
    let batch = objects.put_blob(&run(), Bytes::from(format!("batch {version}"))).await.unwrap();
    Manifest {
        run: run(),
        version: PolicyVersion(version),
        parent: None,
        batch: Some(batch),
        config: Sha::of(b"run file"),
        files: refs,
        metrics: BTreeMap::new(),
    }
}

async fn publish(objects: &Objects, manifest: Manifest, retention: Retention) -> PublishWeightsDone {
    let publish = PublishWeights::new(objects.clone());
    publish.commit(PublishWeightsTask { manifest, retention }).await.unwrap()
}

async fn has(objects: &Objects, content: &str) -> bool {
    objects.has_blob(&run(), &BlobRef::of(content.as_bytes())).await.unwrap()
}

#[tokio::test]
async fn the_first_commit_of_a_version_wins() {
    let objects = Objects::memory();
    let first = version(&objects, 7, &[("model", "first")]).await;
    let second = version(&objects, 7, &[("model", "second, and longer")]).await;
    let done = publish(&objects, first.clone(), Retention::default()).await;
    assert_eq!(done.manifest, Sha::of(&first.to_json()));
    assert_eq!((done.batch, done.bytes, done.created), (first.batch, 5, true));
    for late in [second, first.clone()] {
        let again = publish(&objects, late, Retention::default()).await;
        let standing = PublishWeightsDone { created: false, ..done.clone() };
        assert_eq!(again, standing, "every commit reports the existing manifest");
    }
    let standing = objects.get(&paths::manifest(&run(), PolicyVersion(7))).await.unwrap().unwrap();
    assert_eq!(standing[..], first.to_json()[..]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_concurrent_commits_one_wins_and_all_report_it() {
    // In a folder, where each access takes its time, so that all look before the first creates.
    let folder = tempfile::tempdir().unwrap();
    let objects = Objects::open(folder.path().to_str().unwrap()).unwrap();
    let mut commits = Vec::new();
    for i in 0..16 {
        let manifest = version(&objects, 2, &[("model", &format!("content {i}"))]).await;
        let objects = objects.clone();
        commits.push(tokio::spawn(async move { publish(&objects, manifest, Retention::default()).await }));
    }
    let mut reported = BTreeSet::new();
    for commit in commits {
        reported.insert(commit.await.unwrap().manifest);
    }
    assert_eq!(reported.len(), 1);
}

#[tokio::test]
async fn a_version_with_missing_files_is_not_committed() {
    let objects = Objects::memory();
    let manifest = version(&objects, 1, &[("config", "{}"), ("model", "weights")]).await;
    objects.delete(&paths::blob(&run(), &BlobRef::of(b"weights").sha256)).await.unwrap();
    let publisher = PublishWeights::new(objects.clone());
    let task = PublishWeightsTask { manifest: manifest.clone(), retention: Retention::default() };
    let error = publisher.commit(task).await.unwrap_err();
    assert!(error.to_string().contains("its file model is not"), "{error}");
    assert!(matches!(Failure::from(error), Failure::Retry(..)), "a replica may not know it yet");

    let metrics = [("loss".to_owned(), f64::NAN)].into();
    let task =
        PublishWeightsTask { manifest: Manifest { metrics, ..manifest }, retention: Retention::default() };
    let error = publisher.commit(task).await.unwrap_err();
    assert!(error.to_string().contains("loss=NaN"), "{error}");
    assert!(objects.list(&paths::weights(&run())).await.unwrap().is_empty());
}

/// Commits versions 0 to `last`, each by a publisher of its own as after a restart; gives what was
/// collected.
async fn history(objects: &Objects, last: u64, retention: Retention) -> Vec<PolicyVersion> {
    let mut collected = Vec::new();
    for v in 0..=last {
        // Versions 1 and 4 have the same weights.
        let weights = format!("weights {}", if v == 4 { 1 } else { v });
        let manifest = version(objects, v, &[("config", "shared"), ("model", &weights)]).await;
        collected.extend(publish(objects, manifest, retention).await.collected);
    }
    collected
}

#[tokio::test]
async fn old_versions_are_collected_and_kept_ones_stay_whole() {
    let objects = Objects::memory();
    let retention = Retention { newest: 3, every: 5, checkpoint_every: 1, ..Retention::default() };
    let collected = history(&objects, 12, retention).await;
    // 0 always, 5 and 10 by `every`, 10 to 12 the newest. Version 1 kept its weights as long as
    // version 4, which names the same, was kept.
    let there: Vec<u64> = {
        let mut there = Vec::new();
        for v in 0..=12 {
            if has(&objects, &format!("weights {v}")).await {
                there.push(v);
            }
        }
        there
    };
    assert_eq!(there, [0, 5, 10, 11, 12]);
    assert!(has(&objects, "shared").await, "kept versions name it");
    for v in 0..=12 {
        assert!(has(&objects, &format!("batch {v}")).await, "batches are the books");
        assert!(objects.get(&paths::manifest(&run(), PolicyVersion(v))).await.unwrap().is_some());
    }
    let mut once = collected.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), collected.len(), "each is reported once: {collected:?}");
    assert_eq!(once, [1, 2, 3, 6, 7, 8, 9].map(PolicyVersion));
}

#[tokio::test]
async fn weights_that_a_kept_version_shares_are_kept() {
    let objects = Objects::memory();
    // At version 5 version 1 is given up, and 4, with the same weights, is kept.
    history(&objects, 5, Retention { newest: 2, every: 0, checkpoint_every: 1, ..Retention::default() })
        .await;
    assert!(has(&objects, "weights 1").await);
    assert!(!has(&objects, "weights 2").await);
}

#[tokio::test]
async fn a_late_retry_of_a_commit_collects_nothing_of_newer_versions() {
    let objects = Objects::memory();
    history(&objects, 3, Retention { newest: 2, every: 0, checkpoint_every: 1, ..Retention::default() })
        .await;
    let late = version(&objects, 1, &[("config", "shared"), ("model", "weights 1")]).await;
    publish(&objects, late, Retention { newest: 0, every: 0, checkpoint_every: 1, ..Retention::default() })
        .await;
    for v in [0, 3] {
        assert!(has(&objects, &format!("weights {v}")).await, "version {v}");
    }
}

/// Version `v` as the changes `"changes v"` of the anchor `"anchor a"`, or as the anchor itself.
async fn version_of_anchor(objects: &Objects, v: u64, anchor: u64) -> Manifest {
    let of_anchor = format!("anchor {anchor}");
    let mut manifest = version(objects, v, &[("config", "shared"), ("model", &of_anchor)]).await;
    if v != anchor {
        let changes = objects.put_blob(&run(), format!("changes {v}").into()).await.unwrap();
        let model = &mut manifest.files[1];
        model.delta = Some(DeltaRef { anchor: model.blob, changes });
        // Nothing is stored under it.
        model.blob = BlobRef::of(format!("weights {v}").as_bytes());
    }
    manifest
}

#[tokio::test]
async fn an_anchor_is_kept_as_long_as_a_kept_version_needs_it_and_no_longer() {
    let objects = Objects::memory();
    let retention = Retention { newest: 2, checkpoint_every: 1, anchor_every: 20, ..Retention::default() };
    // More versions between two anchors than a collection looks back.
    for v in 0..=43 {
        let manifest = version_of_anchor(&objects, v, v / 20 * 20).await;
        publish(&objects, manifest, retention).await;
        assert!(has(&objects, &format!("anchor {}", v / 20 * 20)).await, "version {v} is made of it");
        let before = v.saturating_sub(1);
        assert!(has(&objects, &format!("anchor {}", before / 20 * 20)).await, "so is version {before}");
    }
    assert!(has(&objects, "anchor 0").await, "version 0 stays for ever");
    assert!(!has(&objects, "anchor 20").await, "no kept version needs it");
    for v in (1..=41).filter(|v| v % 20 > 0) {
        assert!(!has(&objects, &format!("changes {v}")).await, "version {v}");
    }
    assert!(has(&objects, "changes 42").await && has(&objects, "changes 43").await);
}

#[tokio::test]
async fn a_version_without_its_anchor_is_not_committed() {
    let objects = Objects::memory();
    let manifest = version_of_anchor(&objects, 3, 0).await;
    let publish = PublishWeights::new(objects.clone());
    let delta = manifest.files[1].delta.unwrap();
    for lost in [delta.anchor, delta.changes] {
        let at = paths::blob(&run(), &lost.sha256);
        let content = objects.get(&at).await.unwrap().unwrap();
        objects.delete(&at).await.unwrap();
        let task = PublishWeightsTask { manifest: manifest.clone(), retention: Retention::default() };
        let error = publish.commit(task).await.unwrap_err();
        assert!(matches!(error, PublishError::MissingFile { .. }), "{error}");
        objects.put(&at, content).await.unwrap();
    }
    let task = PublishWeightsTask { manifest, retention: Retention::default() };
    assert!(publish.commit(task).await.unwrap().created);
}
