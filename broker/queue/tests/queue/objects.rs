//! The object store on memory, on a folder, and on a real S3 server.

use std::future::Future;

use bytes::Bytes;
use millrace_queue::testing::S3Server;
use millrace_queue::{Created, ObjectError, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::{BlobRef, RunId};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

mod failures;
mod faults;
mod repeated;
mod speed;
mod uploads;

/// Larger than two ranges and not a multiple of one.
const LARGE: usize = 20 * 1024 * 1024 + 7;

fn run() -> RunId {
    "demo".parse().expect("a run name")
}

fn content(length: usize) -> Bytes {
    (0..length).map(|i| (i * 31 % 251) as u8).collect()
}

async fn blobs_are_proved(objects: &Objects) {
    for length in [0, 1, 1000, LARGE] {
        let blob = objects.put_blob(&run(), content(length)).await.expect("stored");
        assert_eq!(blob, BlobRef::of(&content(length)));
        assert_eq!(objects.put_blob(&run(), content(length)).await.expect("stored again"), blob);
        assert!(objects.get_blob(&run(), &blob).await.expect("read") == content(length), "length {length}");
        let path = paths::blob(&run(), &blob.sha256);
        for wrong in wrong_contents(length) {
            objects.put(&path, wrong).await.expect("written");
            let read = objects.get_blob(&run(), &blob).await;
            assert!(matches!(read, Err(ObjectError::Corrupt { .. })), "length {length}: {read:?}");
        }
        objects.delete(&path).await.expect("deleted");
        let read = objects.get_blob(&run(), &blob).await;
        assert!(matches!(&read, Err(ObjectError::NotFound { .. })), "{read:?}");
        assert!(!read.is_err_and(|e| e.is_transient()));
    }
}

/// One byte more, one less, and one changed at the end.
fn wrong_contents(length: usize) -> Vec<Bytes> {
    let mut wrong = vec![content(length + 1)];
    if length > 0 {
        wrong.push(content(length - 1));
        let mut changed = content(length).to_vec();
        changed[length - 1] ^= 1;
        wrong.push(changed.into());
    }
    wrong
}

async fn one_of_many_creates_wins(objects: &Objects) {
    // SeaweedFS makes the losers wait for a second each.
    for round in 0..3 {
        let path = format!("runs/demo/weights/v{round:06}/manifest.json");
        let creates = (0..32).map(|writer| {
            let (objects, path) = (objects.clone(), path.clone());
            async move {
                let created = objects.create(&path, Bytes::from(format!("writer {writer}"))).await;
                (created.expect("answered"), objects.get(&path).await.expect("read").expect("there"))
            }
        });
        let created = spread(creates).await;
        let winners: Vec<usize> =
            created.iter().enumerate().filter(|(_, (c, _))| *c == Created::New).map(|(i, _)| i).collect();
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        let winner = format!("writer {}", winners[0]);
        assert!(created.iter().all(|(_, found)| *found == winner), "round {round}: {winner} {created:?}");
        assert_eq!(objects.get(&path).await.expect("read").expect("there"), winner);
        assert_eq!(objects.create(&path, Bytes::new()).await.expect("answered"), Created::Exists);
    }
}

/// Runs the futures on different threads.
async fn spread<T: Send + 'static>(
    futures: impl Iterator<Item = impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let tasks: Vec<_> = futures.map(tokio::spawn).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.expect("it does not panic"));
    }
    results
}

async fn paths_are_listed_and_deleted(objects: &Objects) {
    for path in ["a/2", "a/10", "a/b/1", "ab/1"] {
        objects.put(path, Bytes::from_static(b"x")).await.expect("written");
    }
    assert_eq!(objects.list("a").await.expect("listed"), ["a/10", "a/2", "a/b/1"]);
    assert_eq!(objects.list("").await.expect("listed").len(), 4);
    assert!(objects.list("none").await.expect("listed").is_empty());
    objects.put("a/2", Bytes::from_static(b"y")).await.expect("written over");
    assert_eq!(objects.get("a/2").await.expect("read"), Some(Bytes::from_static(b"y")));
    objects.delete("a/2").await.expect("deleted");
    objects.delete("a/2").await.expect("deleting nothing is fine");
    assert_eq!(objects.get("a/2").await.expect("read"), None);
    let outside = objects.put("../outside", Bytes::new()).await;
    assert!(matches!(outside, Err(ObjectError::Refused { .. })), "{outside:?}");
}

async fn all(objects: &Objects) {
    paths_are_listed_and_deleted(objects).await;
    one_of_many_creates_wins(objects).await;
    blobs_are_proved(objects).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_keeps_objects() {
    all(&Objects::open("memory:").expect("opened")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_folder_keeps_objects() {
    let folder = tempfile::tempdir().expect("a folder");
    let location = folder.path().join("made/if/need/be");
    all(&Objects::open(location.to_str().expect("a plain path")).expect("opened")).await;
    let url = format!("file://{}", location.display());
    let again = Objects::open(&url).expect("opened as a URL");
    assert!(!again.list("runs").await.expect("listed").is_empty(), "the same folder");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_s3_server_keeps_objects() {
    let server = S3Server::start().await;
    all(&server.objects("one")).await;
    assert!(server.objects("two").list("").await.expect("listed").is_empty(), "prefixes are apart");
}

/// Which library makes the connection is chosen for the process; without a choice the client could not be made.
#[tokio::test]
async fn an_https_store_is_spoken_to_in_tls() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let endpoint = format!("https://{}", listener.local_addr().expect("an address"));
    let settings = [
        ("endpoint", endpoint.as_str()),
        ("region", "us-east-1"),
        ("access_key_id", "key"),
        ("secret_access_key", "secret"),
    ];
    let objects = Objects::open_s3("bucket", settings).expect("the settings are known");
    let asked = tokio::spawn(async move { objects.get("a").await.map(drop) });
    let (mut stream, _) = listener.accept().await.expect("it is called");
    let mut record = [0; 6];
    stream.read_exact(&mut record).await.expect("the client speaks first");
    asked.abort();
    // A record of the handshake (22), and in it the client's hello (1).
    assert_eq!((record[0], record[5]), (22, 1), "{record:?}");
}

#[tokio::test]
async fn a_store_that_is_gone_is_unavailable() {
    let mut server = S3Server::start().await;
    let objects = server.objects("one");
    objects.put("a", Bytes::from_static(b"x")).await.expect("written");
    server.kill().await;
    let read = objects.get("a").await;
    assert!(read.as_ref().is_err_and(ObjectError::is_transient), "{read:?}");
}

#[test]
fn a_location_that_is_none_is_refused() {
    for location in ["", "gopher://x", "s3://"] {
        assert!(matches!(Objects::open(location), Err(ObjectError::Location { .. })), "{location:?}");
    }
}
