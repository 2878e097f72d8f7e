//! What a collection asks of the store, and how long a commit waits for it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use millrace_objects::gate::{Action, Fate, Gate, gated};
use tokio::time::Instant;

use super::super::collect::WITHIN;
use super::*;

const RETENTION: Retention = Retention { newest: 2, every: 0, checkpoint_every: 1, anchor_every: 1 };

/// Notes what is asked. Each request takes its time; a deletion may take for ever.
#[derive(Default)]
struct Notes {
    asked: Mutex<Vec<(Action, String)>>,
    takes: Duration,
    never_deletes: bool,
}

#[async_trait]
impl Gate for Notes {
    async fn request(&self, action: Action, path: &str) -> Fate {
        self.asked.lock().unwrap().push((action, path.to_owned()));
        if self.never_deletes && action == Action::Delete {
            return std::future::pending().await;
        }
        tokio::time::sleep(self.takes).await;
        Fate::Pass
    }

    async fn answer(&self) -> bool {
        true
    }
}

async fn weights(objects: &Objects, v: u64) -> Manifest {
    version(objects, v, &[("config", "shared"), ("model", &format!("weights {v}"))]).await
}

/// Commits `manifest`, whose files are stored.
async fn commit(publisher: &PublishWeights, manifest: Manifest) -> PublishWeightsDone {
    publisher.commit(PublishWeightsTask { manifest, retention: RETENTION }).await.unwrap()
}

#[tokio::test]
async fn what_is_collected_is_looked_at_once() {
    let objects = Objects::memory();
    let notes = Arc::new(Notes::default());
    let publisher = PublishWeights::new(gated(&objects, notes.clone()));
    for v in 0..=30 {
        let manifest = weights(&objects, v).await;
        notes.asked.lock().unwrap().clear();
        let own: Vec<String> = manifest
            .files
            .iter()
            .flat_map(FileRef::stored)
            .chain(manifest.batch)
            .map(|blob| paths::blob(&run(), &blob.sha256))
            .collect();
        let done = commit(&publisher, manifest).await;
        if v < 3 {
            continue;
        }
        // One version falls out.
        assert_eq!(done.collected, [PolicyVersion(v - 2)]);
        let out = paths::blob(&run(), &BlobRef::of(format!("weights {}", v - 2).as_bytes()).sha256);
        let mut asked = notes.asked.lock().unwrap().clone();
        asked.retain(|(_, path)| path.contains("blobs") && !own.contains(path));
        assert_eq!(asked, [(Action::Read, out.clone()), (Action::Delete, out)]);
    }
}

/// As after a restart, or after collections that failed.
#[tokio::test(start_paused = true)]
async fn the_files_of_many_versions_are_collected_at_once() {
    let objects = Objects::memory();
    let all = Retention { newest: 100, ..RETENTION };
    for v in 0..=16 {
        publish(&objects, weights(&objects, v).await, all).await;
    }
    let manifest = weights(&objects, 17).await;
    let notes = Arc::new(Notes { takes: Duration::from_millis(300), ..Notes::default() });
    let publisher = PublishWeights::new(gated(&objects, notes));
    let done = commit(&publisher, manifest).await;
    assert_eq!(done.collected, (1..16).map(PolicyVersion).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_in_the_collection_holds_up_a_commit_for_seconds_only() {
    let objects = Objects::memory();
    let notes = Arc::new(Notes { never_deletes: true, ..Notes::default() });
    let publisher = PublishWeights::new(gated(&objects, notes));
    for v in 0..=3 {
        let manifest = weights(&objects, v).await;
        let start = Instant::now();
        let done = commit(&publisher, manifest).await;
        assert!(done.created && done.collected.is_empty());
        assert!(start.elapsed() <= WITHIN + Duration::from_millis(10), "{:?}", start.elapsed());
    }
    // The next one collects what those did not.
    let next = publish(&objects, weights(&objects, 4).await, RETENTION).await;
    assert_eq!(next.collected, [1, 2].map(PolicyVersion));
}
