//! A real S3 server with faults in front of it: cut connections, throttling, expired credentials, a server that
//! hangs, a full disk. Each caller learns of it within a bound, and nothing half-written is read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millrace_queue::testing::{Fault, S3Proxy, S3Server, s3_settings};
use millrace_queue::{Created, ObjectError, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::{BlobRef, PolicyVersion, RunId};
use tokio::time::Instant;

use super::uploads::uploads;
use super::{LARGE, content, run};

/// In two parts and a rest: above what one request writes.
const IN_PARTS: usize = 70 * 1024 * 1024 + 7;
/// When the client gives up to repeat a request, and a machine of CI that is slow.
const BOUND: Duration = Duration::from_secs(25);
/// When the client gives up to wait for an answer, and the same.
const HANG_BOUND: Duration = Duration::from_secs(60);
/// A server that works answers by then.
const PROMPT: Duration = Duration::from_secs(5);

fn is_unavailable<T>(result: &Result<T, ObjectError>) -> bool {
    matches!(result, Err(ObjectError::Unavailable { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upload_that_is_cut_once_is_repeated() {
    let server = S3Server::start().await;
    for length in [LARGE, IN_PARTS] {
        let cut = AtomicBool::new(false);
        let proxy = S3Proxy::start(server.endpoint(), move |request| {
            let first = request.method == "PUT" && !cut.swap(true, Ordering::Relaxed);
            if first { Fault::CutUpload(1_000_000) } else { Fault::Pass }
        })
        .await;
        let objects = server.objects_at(proxy.endpoint(), "cut");
        let blob = objects.put_blob(&run(), content(length)).await.expect("stored in spite of it");
        assert!(server.objects("cut").get_blob(&run(), &blob).await.expect("read") == content(length));
    }
    assert_eq!(uploads(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upload_that_is_always_cut_fails_and_leaves_nothing() {
    let server = S3Server::start().await;
    let proxy = S3Proxy::start(server.endpoint(), |request| match request.length {
        // All parts but the last arrive.
        0..8_000_000 if request.method == "PUT" => Fault::CutUpload(1_000_000),
        _ => Fault::Pass,
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "cut");
    let began = Instant::now();
    let stored = objects.put_blob(&run(), content(IN_PARTS)).await;
    assert!(is_unavailable(&stored), "{stored:?}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    let requests = proxy.seen();
    assert!(requests.iter().any(|request| request.target.contains("partNumber=")), "it went in parts");
    let blob = BlobRef::of(&content(IN_PARTS));
    assert!(!server.objects("cut").has_blob(&run(), &blob).await.expect("answered"), "no half of it exists");
    assert_eq!(uploads(&server).await, 0, "its parts are removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_upload_that_nobody_waits_for_any_more_leaves_no_parts() {
    let server = S3Server::start().await;
    let proxy = S3Proxy::start(server.endpoint(), |request| match request.target.contains("partNumber=2") {
        true => Fault::Hang,
        false => Fault::Pass,
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "dropped");
    let upload = tokio::spawn(async move { objects.put_blob(&run(), content(IN_PARTS)).await.map(drop) });
    until(async || proxy.seen().iter().any(|request| request.target.contains("partNumber=2"))).await;
    assert_eq!(uploads(&server).await, 1, "it has begun");
    upload.abort();
    until(async || uploads(&server).await == 0).await;
}

/// Waits until it holds.
async fn until(holds: impl AsyncFn() -> bool) {
    let give_up = Instant::now() + BOUND;
    while !holds().await {
        assert!(Instant::now() < give_up, "it never came true");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_completion_whose_answer_gets_lost_is_a_completion() {
    let server = S3Server::start().await;
    let count = AtomicUsize::new(0);
    let proxy = S3Proxy::start(server.endpoint(), move |request| {
        if request.method != "POST" || !request.target.contains("uploadId=") {
            return Fault::Pass;
        }
        match count.fetch_add(1, Ordering::Relaxed) {
            0 => Fault::CutDownload(10),
            // S3 forgets the id of a completed upload. SeaweedFS does not.
            _ => Fault::error("404 Not Found", "NoSuchUpload"),
        }
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "lost");
    let blob = objects.put_blob(&run(), content(IN_PARTS)).await.expect("the object exists");
    assert!(objects.get_blob(&run(), &blob).await.expect("read") == content(IN_PARTS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_part_that_is_damaged_on_the_way_is_refused() {
    let server = S3Server::start().await;
    for length in [LARGE, IN_PARTS] {
        let proxy = S3Proxy::start(server.endpoint(), |request| match request.method.as_str() {
            "PUT" => Fault::Corrupt,
            _ => Fault::Pass,
        })
        .await;
        let stored = server.objects_at(proxy.endpoint(), "damaged").put_blob(&run(), content(length)).await;
        assert!(stored.is_err(), "length {length}");
        let blob = BlobRef::of(&content(length));
        assert!(!server.objects("damaged").has_blob(&run(), &blob).await.expect("answered"));
    }
    assert_eq!(uploads(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_download_that_is_cut_is_whole_or_an_error() {
    let server = S3Server::start().await;
    let blob = server.objects("cut").put_blob(&run(), content(LARGE)).await.expect("stored");
    let cuts = Arc::new(AtomicUsize::new(2));
    let left = cuts.clone();
    let proxy = S3Proxy::start(server.endpoint(), move |request| {
        let cut = request.method == "GET"
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
        if cut { Fault::CutDownload(100_000) } else { Fault::Pass }
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "cut");
    assert!(objects.get_blob(&run(), &blob).await.expect("read in spite of it") == content(LARGE));
    assert_eq!(cuts.swap(usize::MAX, Ordering::Relaxed), 0, "it was cut");
    let began = Instant::now();
    let read = objects.get_blob(&run(), &blob).await;
    assert!(is_unavailable(&read), "{:?}", read.map(|bytes| bytes.len()));
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_throttled_request_is_repeated_with_growing_pauses() {
    const TIMES: usize = 4;
    let server = S3Server::start().await;
    let count = AtomicUsize::new(0);
    let proxy = S3Proxy::start(server.endpoint(), move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0..TIMES => Fault::error("503 Slow Down", "SlowDown"),
        _ => Fault::Pass,
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "slow");
    objects.put("a", Bytes::from_static(b"x")).await.expect("written in the end");
    let seen = proxy.seen();
    assert_eq!(seen.len(), TIMES + 1, "each refusal costs one request");
    let pauses: Vec<_> = seen.windows(2).map(|pair| pair[1].at - pair[0].at).collect();
    assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(50)), "{pauses:?}");
    assert_eq!(objects.get("a").await.expect("read"), Some(Bytes::from_static(b"x")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn throttling_for_good_is_told_and_stops_no_other_run() {
    let server = S3Server::start().await;
    let other: RunId = "other".parse().expect("a run name");
    let proxy = S3Proxy::start(server.endpoint(), |request| match request.target.contains("/runs/demo/") {
        true => Fault::error("503 Slow Down", "SlowDown"),
        false => Fault::Pass,
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "slow");
    let (throttled, began) = (objects.clone(), Instant::now());
    let throttled = tokio::spawn(async move {
        let run = run();
        let manifest = paths::manifest(&run, PolicyVersion(1));
        let (stored, created) = tokio::join!(
            throttled.put_blob(&run, content(1_000)),
            throttled.create(&manifest, Bytes::from_static(b"{}"))
        );
        (is_unavailable(&stored), is_unavailable(&created), format!("{stored:?} {created:?}"))
    });
    let mut rounds = 0;
    while !throttled.is_finished() {
        let one = async {
            let blob = objects.put_blob(&other, content(1_000 + rounds)).await.expect("stored");
            objects.get_blob(&other, &blob).await.expect("read");
        };
        tokio::time::timeout(PROMPT, one).await.expect("the other run goes on");
        rounds += 1;
    }
    let (stored, created, text) = throttled.await.expect("it does not panic");
    assert!(stored && created && text.contains("SlowDown"), "{text}");
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    assert!(rounds > 10, "{rounds} rounds");
    let asked = proxy.seen().iter().filter(|request| request.target.contains("/runs/demo/")).count();
    assert!(asked <= 40, "{asked} requests in {:?} add to the throttling", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn expired_credentials_are_told_at_once_and_renewed_ones_work() {
    let server = S3Server::start().await;
    let expired = Arc::new(AtomicBool::new(true));
    let is_expired = expired.clone();
    let proxy = S3Proxy::start(server.endpoint(), move |_| match is_expired.load(Ordering::Relaxed) {
        true => Fault::error("403 Forbidden", "ExpiredToken"),
        false => Fault::Pass,
    })
    .await;
    let objects = server.objects_at(proxy.endpoint(), "expired");
    let stored = objects.put("a", Bytes::from_static(b"x")).await;
    assert!(
        matches!(&stored, Err(e @ ObjectError::Forbidden { .. }) if e.to_string().contains("ExpiredToken")),
        "{stored:?}"
    );
    assert_eq!(proxy.seen().len(), 1, "no repetition makes them valid");
    expired.store(false, Ordering::Relaxed);
    objects.put("a", Bytes::from_static(b"x")).await.expect("the same store works again");
}

/// What a role's service of credentials answers: a key that is about to expire, so that nobody keeps it.
fn role(secret: &str) -> String {
    let [.., (_, key_id), _] = s3_settings("");
    format!(
        r#"{{"AccessKeyId":"{key_id}","SecretAccessKey":"{secret}","Token":"","Expiration":"2000-01-01T00:00:00Z"}}"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_role_whose_credentials_were_wrong_recovers_without_a_restart() {
    let server = S3Server::start().await;
    let renewed = Arc::new(AtomicBool::new(false));
    let is_renewed = renewed.clone();
    let service = S3Proxy::start(server.endpoint(), move |_| {
        let secret = if is_renewed.load(Ordering::Relaxed) { s3_settings("")[4].1 } else { "former" };
        Fault::Answer("200 OK", role(secret))
    })
    .await;
    let folder = tempfile::tempdir().expect("a folder");
    let token = folder.path().join("token");
    std::fs::write(&token, "a token").expect("written");
    let service = format!("{}/credentials", service.endpoint());
    let settings = [
        ("endpoint", server.endpoint()),
        ("allow_http", "true"),
        ("region", "us-east-1"),
        ("container_credentials_full_uri", service.as_str()),
        ("container_authorization_token_file", token.to_str().expect("a plain path")),
    ];
    let objects = Objects::open_s3("millrace/role", settings).expect("the settings are known");
    let stored = objects.put("a", Bytes::from_static(b"x")).await;
    assert!(matches!(stored, Err(ObjectError::Forbidden { .. })), "{stored:?}");
    renewed.store(true, Ordering::Relaxed);
    until(async || objects.put("a", Bytes::from_static(b"x")).await.is_ok()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_hangs_is_waited_for_within_a_bound() {
    let server = S3Server::start().await;
    let proxy = S3Proxy::start(server.endpoint(), |_| Fault::Hang).await;
    let objects = server.objects_at(proxy.endpoint(), "hang");
    let began = Instant::now();
    let (run, blob) = (run(), BlobRef::of(b"x"));
    let (read, written, created, listed, removed, found) = tokio::join!(
        objects.get("a"),
        objects.put("a", content(LARGE)),
        objects.create("a", Bytes::from_static(b"x")),
        objects.list("a"),
        objects.delete("a"),
        objects.has_blob(&run, &blob),
    );
    assert!(began.elapsed() < HANG_BOUND, "{:?}", began.elapsed());
    assert!(is_unavailable(&read) && is_unavailable(&written) && is_unavailable(&created));
    assert!(is_unavailable(&listed) && is_unavailable(&removed) && is_unavailable(&found));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_store_is_told_and_takes_writes_again() {
    let server = S3Server::start().await;
    for status in ["507 Insufficient Storage", "500 Internal Server Error"] {
        let full = Arc::new(AtomicBool::new(true));
        let is_full = full.clone();
        let proxy = S3Proxy::start(server.endpoint(), move |request| {
            let writes = matches!(request.method.as_str(), "PUT" | "POST");
            if writes && is_full.load(Ordering::Relaxed) {
                Fault::error(status, "InternalError")
            } else {
                Fault::Pass
            }
        })
        .await;
        let objects = server.objects_at(proxy.endpoint(), "full");
        let began = Instant::now();
        let (small, large) =
            tokio::join!(objects.create("a", Bytes::from_static(b"x")), objects.put("b", content(IN_PARTS)));
        assert!(is_unavailable(&small), "{status}: {small:?}");
        assert!(is_unavailable(&large), "{status}: {large:?}");
        assert!(began.elapsed() < BOUND, "{status}: {:?}", began.elapsed());
        assert_eq!(objects.get("a").await.expect("reads go on"), None);
        full.store(false, Ordering::Relaxed);
        assert_eq!(objects.create("a", Bytes::from_static(b"x")).await.expect("there is room"), Created::New);
        objects.delete("a").await.expect("deleted");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_disk_that_is_full_loses_nothing_that_was_stored() {
    let server = S3Server::start_on_disk(120).await;
    let objects = server.objects("full");
    let (mut stored, began) = (Vec::new(), Instant::now());
    let refused = loop {
        let next = content(LARGE + stored.len());
        match objects.put_blob(&run(), next.clone()).await {
            Ok(blob) => stored.push(blob),
            Err(e) => break (e, BlobRef::of(&next)),
        }
        assert!(stored.len() < 10, "the disk does not get full");
    };
    assert!(matches!(refused.0, ObjectError::Unavailable { .. }), "{:?}", refused.0);
    assert!(began.elapsed() < 2 * BOUND, "{:?}", began.elapsed());
    assert!(!objects.has_blob(&run(), &refused.1).await.expect("answered"), "no half of it exists");
    assert!(!stored.is_empty());
    for blob in &stored {
        objects.get_blob(&run(), blob).await.expect("what was stored before is whole");
    }
}
