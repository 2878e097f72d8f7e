use millrace_queue::Objects;
use millrace_schemas::blob::paths;

use super::*;
use crate::model::folder::Spare;

/// Words of the weights: large enough for the folder.
const WORDS: usize = 600_000;
const NAME: &str = "model.safetensors";

fn run() -> RunId {
    "lake".parse().unwrap()
}

/// Weights whose every hundredth word was moved by one, `times` times.
fn weights(times: usize) -> Bytes {
    let words = (0..WORDS).map(|at| {
        let word = (at as u16).wrapping_mul(0x9e37);
        word.wrapping_add((0..times).filter(|step| (at * 31 + step * 7).is_multiple_of(100)).count() as u16)
    });
    words.flat_map(u16::to_le_bytes).collect::<Vec<u8>>().into()
}

fn fresh(objects: &Objects) -> FileStore {
    FileStore::new(BlobCache::new(objects.clone()), None)
}

async fn exists(objects: &Objects, blob: &BlobRef) -> bool {
    objects.has_blob(&run(), blob).await.unwrap()
}

#[tokio::test]
async fn weights_that_changed_little_are_stored_as_changes_of_one_anchor_and_come_back_the_same() {
    let objects = Objects::memory();
    let trainer = fresh(&objects);
    let mut base = trainer.store(&run(), NAME, weights(0), None).await.unwrap();
    assert_eq!(base.delta, None);
    let anchor = base.blob;
    for times in 1..=4 {
        let next = trainer.store(&run(), NAME, weights(times), Some(&base)).await.unwrap();
        let delta = next.delta.unwrap();
        assert_eq!(delta.anchor, anchor, "the anchor, not the version before");
        assert!(delta.changes.bytes * 20 < next.blob.bytes, "{} bytes", delta.changes.bytes);
        assert!(!exists(&objects, &next.blob).await, "it is not stored whole besides");
        // A worker that comes late, and one that reads without a cache.
        assert_eq!(fresh(&objects).fetch(&run(), &next).await.unwrap(), weights(times));
        assert_eq!(objects.get_file(&run(), &next).await.unwrap(), weights(times));
        base = next;
    }
}

#[tokio::test]
async fn the_same_weights_are_stored_the_same_by_every_trainer() {
    let objects = Objects::memory();
    let base = fresh(&objects).store(&run(), NAME, weights(0), None).await.unwrap();
    let one = fresh(&objects).store(&run(), NAME, weights(1), Some(&base)).await.unwrap();
    let other = fresh(&objects).store(&run(), NAME, weights(1), Some(&base)).await.unwrap();
    assert_eq!(one, other);
}

#[tokio::test]
async fn weights_that_changed_much_or_whose_anchor_is_gone_are_stored_whole() {
    let objects = Objects::memory();
    let base = fresh(&objects).store(&run(), NAME, weights(0), None).await.unwrap();
    let other: Bytes = weights(0).iter().map(|byte| byte ^ 0x5a).collect::<Vec<u8>>().into();
    let stored = fresh(&objects).store(&run(), NAME, other, Some(&base)).await.unwrap();
    assert_eq!(stored.delta, None);
    let longer =
        fresh(&objects).store(&run(), NAME, [weights(1), weights(1)].concat().into(), Some(&base)).await;
    assert_eq!(longer.unwrap().delta, None);

    objects.delete(&paths::blob(&run(), &base.blob.sha256)).await.unwrap();
    let alone = fresh(&objects).store(&run(), NAME, weights(1), Some(&base)).await.unwrap();
    assert_eq!(alone.delta, None);
    assert_eq!(fresh(&objects).fetch(&run(), &alone).await.unwrap(), weights(1));
}

#[tokio::test]
async fn changes_that_give_other_weights_are_refused() {
    let objects = Objects::memory();
    let trainer = fresh(&objects);
    let base = trainer.store(&run(), NAME, weights(0), None).await.unwrap();
    let [one, two] = [1, 2].map(|times| {
        let (trainer, base) = (trainer.clone(), base.clone());
        async move { trainer.store(&run(), NAME, weights(times), Some(&base)).await.unwrap() }
    });
    let (one, two) = (one.await, two.await);
    let lies = FileRef { delta: two.delta, ..one };
    for refused in [fresh(&objects).fetch(&run(), &lies).await, objects.get_file(&run(), &lies).await] {
        let error = refused.unwrap_err();
        assert!(matches!(error, ObjectError::Corrupt { .. }), "{error}");
    }
    let gone = two.delta.unwrap().changes;
    objects.delete(&paths::blob(&run(), &gone.sha256)).await.unwrap();
    assert!(!objects.has_file(&run(), &two).await.unwrap());
    let error = fresh(&objects).fetch(&run(), &two).await.unwrap_err();
    assert!(matches!(error, ObjectError::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn what_one_worker_of_a_machine_has_fetched_or_written_the_others_read_from_its_folder() {
    let objects = Objects::memory();
    let path = tempfile::tempdir().unwrap();
    let open = || {
        let folder = Folder::open(path.path().to_owned(), 1 << 30).unwrap().on_a_disk(|_| Ok(1 << 40));
        FileStore::new(BlobCache::new(objects.clone()), Some(Arc::new(folder)))
    };
    let base = open().store(&run(), NAME, weights(0), None).await.unwrap();
    let next = open().store(&run(), NAME, weights(1), Some(&base)).await.unwrap();
    // The store has lost the anchor; the machine has it.
    objects.delete(&paths::blob(&run(), &base.blob.sha256)).await.unwrap();
    assert_eq!(open().fetch(&run(), &base).await.unwrap(), weights(0));
    assert_eq!(open().fetch(&run(), &next).await.unwrap(), weights(1));
    // One has made it of its anchor and the changes, and none has to do so again.
    let changes = next.delta.expect("it changed little").changes;
    for gone in [base.blob, changes] {
        let _ = std::fs::remove_file(path.path().join(gone.sha256.to_string()));
        objects.delete(&paths::blob(&run(), &gone.sha256)).await.unwrap();
    }
    assert_eq!(open().fetch(&run(), &next).await.unwrap(), weights(1));
    // Only training needs these, so no other worker will ask.
    let moments = open().store(&run(), "optimizer-0-of-1.safetensors", weights(3), None).await.unwrap();
    assert!(!path.path().join(moments.blob.sha256.to_string()).exists());
}

/// In a folder, or on a disk, that has room for one file alone, what is made would drive its anchor
/// out, and each version would fetch the anchor again.
#[tokio::test]
async fn a_small_folder_keeps_the_anchor() {
    let objects = Objects::memory();
    let path = tempfile::tempdir().unwrap();
    let base = fresh(&objects).store(&run(), NAME, weights(0), None).await.unwrap();
    let next = fresh(&objects).store(&run(), NAME, weights(1), Some(&base)).await.unwrap();
    let (large, full): (Spare, Spare) = (|_| Ok(1 << 40), |_| Ok(i64::MIN));
    let anchor = base.blob.bytes;
    for (room, spare, made_is_kept) in
        [(anchor * 3 / 2, large, false), (anchor * 4, full, false), (anchor * 2, large, true)]
    {
        let folder = Folder::open(path.path().to_owned(), room).unwrap().on_a_disk(spare);
        let store = FileStore::new(BlobCache::new(objects.clone()), Some(Arc::new(folder)));
        assert_eq!(store.fetch(&run(), &next).await.unwrap(), weights(1));
        let kept = |blob: &BlobRef| path.path().join(blob.sha256.to_string()).exists();
        assert!(kept(&base.blob), "room={room}");
        assert_eq!(kept(&next.blob), made_is_kept, "room={room}");
    }
}
