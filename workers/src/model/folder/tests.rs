use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use tempfile::TempDir;

use super::*;

/// A blob of `LEAST_BYTES`, by its first byte.
fn blob(first: u8) -> (BlobRef, Bytes) {
    let mut content = vec![7; LEAST_BYTES as usize];
    content[0] = first;
    (BlobRef::of(&content), content.into())
}

fn folder(most: u64) -> (TempDir, Folder) {
    let path = tempfile::tempdir().unwrap();
    let folder = Folder::open(path.path().to_owned(), most).unwrap().on_a_disk(|_| Ok(1 << 40));
    (path, folder)
}

fn names(path: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(path.path()).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

async fn never() -> Result<Bytes, ObjectError> {
    panic!("it is here")
}

#[tokio::test]
async fn of_many_at_once_one_fetches_and_all_get_it() {
    let (path, _) = folder(1 << 30);
    let (blob, content) = blob(1);
    let fetched = AtomicUsize::new(0);
    // Each opens the folder for itself, as a process would.
    let all = (0..32).map(async |_| {
        let folder = Folder::open(path.path().to_owned(), 1 << 30).unwrap();
        let fetch = async {
            fetched.fetch_add(1, Ordering::SeqCst);
            // Until the others have come.
            tokio::time::sleep(LOOK * 2).await;
            Ok(content.clone())
        };
        folder.get_or(&blob, fetch).await.unwrap()
    });
    let all = futures::future::join_all(all).await;
    assert!(all.iter().all(|got| *got == content));
    assert_eq!(fetched.load(Ordering::SeqCst), 1);
    assert_eq!(names(&path), [blob.sha256.to_string()], "no lock and no part is left");
}

#[tokio::test]
async fn one_that_fails_or_is_killed_in_its_fetch_makes_room_for_the_next() {
    let (path, folder) = folder(1 << 30);
    let folder = Arc::new(folder);
    let (blob, content) = blob(1);
    let failed = async {
        Err(ObjectError::Unavailable { action: "read", path: "x".into(), reason: "it is away".into() })
    };
    folder.get_or(&blob, failed).await.unwrap_err();
    let (begun, has_begun) = tokio::sync::oneshot::channel();
    let killed = tokio::spawn({
        let folder = folder.clone();
        async move {
            let fetch = async {
                let _ = begun.send(());
                std::future::pending().await
            };
            folder.get_or(&blob, fetch).await
        }
    });
    has_begun.await.unwrap();
    assert_eq!(names(&path).len(), 1, "its lock");
    killed.abort();
    let got = folder.get_or(&blob, async { Ok(content.clone()) }).await.unwrap();
    assert_eq!(got, content);
}

#[tokio::test]
async fn one_that_hangs_in_its_fetch_is_not_waited_for() {
    let (path, mut folder) = folder(1 << 30);
    folder.patience = Duration::from_millis(200);
    let (blob, content) = blob(1);
    // A process that is stopped holds its lock and sends no heartbeat.
    let hung = File::create(path.path().join(blob.sha256.to_string()).with_extension(LOCK)).unwrap();
    hung.lock().unwrap();
    let got = folder.get_or(&blob, async { Ok(content.clone()) }).await.unwrap();
    assert_eq!(got, content);
    assert_eq!(folder.get_or(&blob, never()).await.unwrap(), content, "it is kept all the same");
}

#[tokio::test]
async fn a_damaged_file_is_fetched_again() {
    let (path, folder) = folder(1 << 30);
    let (blob, content) = blob(1);
    folder.keep(&blob, content.clone()).await;
    let at = path.path().join(blob.sha256.to_string());
    for damage in [&content[1..], &[0; LEAST_BYTES as usize][..], b""] {
        std::fs::write(&at, damage).unwrap();
        assert_eq!(folder.get_or(&blob, async { Ok(content.clone()) }).await.unwrap(), content);
        assert_eq!(folder.get_or(&blob, never()).await.unwrap(), content);
    }
}

#[tokio::test]
async fn what_was_not_used_for_longest_makes_room() {
    let (path, folder) = folder(2 * LEAST_BYTES);
    let blobs: Vec<_> = (0..3).map(blob).collect();
    for (blob, content) in &blobs[..2] {
        folder.keep(blob, content.clone()).await;
    }
    let left = path.path().join(format!("{}-1-1.{PART}", blobs[0].0.sha256));
    std::fs::write(&left, b"of a writer that died").unwrap();
    let old = left.metadata().unwrap().modified().unwrap() - 2 * LEFT_BEHIND;
    for (path, age) in [
        (path.path().join(blobs[0].0.sha256.to_string()), old),
        (path.path().join(blobs[1].0.sha256.to_string()), old + Duration::from_secs(1)),
        (left, old),
    ] {
        File::open(path).unwrap().set_modified(age).unwrap();
    }
    // It becomes the youngest by being read.
    folder.get_or(&blobs[0].0, never()).await.unwrap();
    folder.keep(&blobs[2].0, blobs[2].1.clone()).await;
    let mut expected = [0, 2].map(|at: usize| blobs[at].0.sha256.to_string());
    expected.sort_unstable();
    assert_eq!(names(&path), expected);
}

/// The disk of a machine that is in use: what others write may take away the room that this folder was promised.
#[tokio::test]
async fn on_a_disk_that_becomes_full_only_the_newest_stays() {
    let (path, folder) = folder(1 << 30);
    let blobs: Vec<_> = (0..4).map(blob).collect();
    for (blob, content) in &blobs[..2] {
        folder.keep(blob, content.clone()).await;
    }
    assert!(folder.has_room_for(4 * LEAST_BYTES));
    // As much as one blob is free: the two, and one beside them.
    let folder = folder.on_a_disk(|_| Ok(LEAST_BYTES as i64));
    assert!(folder.has_room_for(3 * LEAST_BYTES));
    assert!(!folder.has_room_for(4 * LEAST_BYTES));
    let folder = folder.on_a_disk(|_| Ok(i64::MIN));
    assert!(!folder.has_room_for(1));
    folder.keep(&blobs[3].0, blobs[3].1.clone()).await;
    assert_eq!(names(&path), [blobs[3].0.sha256.to_string()]);
    // It is read all the same, and the others are fetched.
    assert_eq!(folder.get_or(&blobs[3].0, never()).await.unwrap(), blobs[3].1);
    assert_eq!(folder.get_or(&blobs[0].0, async { Ok(blobs[0].1.clone()) }).await.unwrap(), blobs[0].1);
    assert_eq!(names(&path), [blobs[0].0.sha256.to_string()]);
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_hinders_nobody() {
    let (path, folder) = folder(1 << 30);
    let (blob, content) = blob(1);
    drop(path);
    assert_eq!(folder.get_or(&blob, async { Ok(content.clone()) }).await.unwrap(), content);
    let file = tempfile::NamedTempFile::new().unwrap();
    Folder::open(file.path().to_owned(), 1).unwrap_err();
}
