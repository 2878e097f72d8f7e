//! `millrace bucket` on a real S3 server, on one with a fault in front of it, and on folders.

use std::path::Path;
use std::process::Output;

use millrace_queue::testing::{Fault, S3Proxy, S3Request, S3Server, s3_settings};
use tokio::time::timeout;

use super::support::{PATIENCE, millrace, stderr, stdout};

/// `millrace bucket WORDS` with the server at `endpoint`.
async fn bucket(endpoint: &str, words: &[&str]) -> Output {
    let mut command = millrace();
    for (name, value) in s3_settings(endpoint) {
        command.env(format!("AWS_{}", name.to_ascii_uppercase()), value);
    }
    let ran = command.arg("bucket").args(words).output();
    timeout(PATIENCE, ran).await.expect("millrace ends").expect("millrace starts")
}

/// The level of the report's line about `what`.
fn level<'a>(report: &'a str, what: &str) -> &'a str {
    let levels = ["ok", "lacks", "warning", "ERROR"];
    let mut lines = report.lines().filter_map(|line| line.trim_start().split_once(' '));
    let found = lines.find(|(level, rest)| levels.contains(level) && rest.trim_start().starts_with(what));
    found.map_or_else(|| panic!("no {what:?} in\n{report}"), |(level, _)| level)
}

#[tokio::test]
async fn init_sets_what_is_missing_once_and_the_check_agrees() {
    let server = S3Server::start().await;
    let location = "s3://made-by-init/objects";
    let missing = bucket(server.endpoint(), &["check", location]).await;
    assert_eq!(missing.status.code(), Some(1));
    assert!(stdout(&missing).contains("NoSuchBucket"), "{}", stdout(&missing));
    assert!(stdout(&missing).contains("remedy: millrace bucket init s3://made-by-init"));

    let made = bucket(server.endpoint(), &["init", location]).await;
    let report = stdout(&made);
    assert!(made.status.success(), "{report}{}", stderr(&made));
    for done in ["created  made-by-init", "set      versioning", "set      lifecycle", "set      encryption"]
    {
        assert!(report.contains(done), "{done}: {report}");
    }
    for what in ["versioning", "encryption", "lifecycle", "create-only", "rights: log", "clock"] {
        assert_eq!(level(&report, what), "ok", "{report}");
    }
    // SeaweedFS does not implement this one. That is no fault of the bucket.
    assert_eq!(level(&report, "public access"), "lacks", "{report}");

    let again = bucket(server.endpoint(), &["init", location]).await;
    assert!(again.status.success(), "{}", stderr(&again));
    assert!(!stdout(&again).contains("  set ") && !stdout(&again).contains("created"), "{}", stdout(&again));
    // A second store in the bucket needs a rule of its own; the first keeps its.
    assert!(bucket(server.endpoint(), &["init", "s3://made-by-init/other"]).await.status.success());
    let first = bucket(server.endpoint(), &["check", location]).await;
    assert_eq!(level(&stdout(&first), "lifecycle"), "ok", "{}", stdout(&first));
}

/// The report of a check where `fault` answers some requests instead of the server.
async fn check_with(
    server: &S3Server,
    fault: impl Fn(&S3Request) -> Fault + Send + Sync + 'static,
) -> (Option<i32>, String) {
    let proxy = S3Proxy::start(server.endpoint(), fault).await;
    let checked = bucket(proxy.endpoint(), &["check", "s3://millrace/objects"]).await;
    (checked.status.code(), stdout(&checked) + &stderr(&checked))
}

#[tokio::test]
async fn what_would_lose_data_fails_the_check_and_names_the_remedy() {
    let server = S3Server::start().await;
    let rule = |content: &str| {
        let rule = format!("<Rule><ID>theirs</ID><Status>Enabled</Status>{content}</Rule>");
        format!("<LifecycleConfiguration>{rule}</LifecycleConfiguration>")
    };
    let expires =
        rule("<Filter><Prefix>objects/runs</Prefix></Filter><Expiration><Days>30</Days></Expiration>");
    let (code, report) = check_with(&server, move |request| match request.target.contains("?lifecycle") {
        true => Fault::Answer("200 OK", expires.clone()),
        false => Fault::Pass,
    })
    .await;
    assert_eq!(code, Some(1), "{report}");
    assert!(report.contains("rule \"theirs\" removes objects below objects/runs/"), "{report}");
    assert!(report.contains("remedy: remove the rule"), "{report}");

    // A server that ignores the condition lets every writer win.
    let (code, report) = check_with(&server, |request| {
        match request.method == "PUT" && request.headers.to_ascii_lowercase().contains("if-none-match") {
            true if request.target.contains("-create-") => Fault::Answer("200 OK", String::new()),
            _ => Fault::Pass,
        }
    })
    .await;
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(level(&report, "create-only"), "ERROR", "{report}");

    // A cache in between that gives former content.
    let (code, report) =
        check_with(&server, |request| match request.method == "GET" && request.target.contains("-read") {
            true => Fault::Answer("200 OK", "content 0".into()),
            false => Fault::Pass,
        })
        .await;
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(level(&report, "read after write"), "ERROR", "{report}");
}

#[tokio::test]
async fn rights_are_told_prefix_by_prefix() {
    let server = S3Server::start().await;
    let denied = || Fault::error("403 Forbidden", "AccessDenied");
    let (code, report) = check_with(&server, move |request| {
        let log = request.method == "PUT" && request.target.contains("/log/");
        // Objects are removed by a POST with their names in its body.
        if log || request.method == "POST" && request.target.ends_with("?delete") {
            denied()
        } else {
            Fault::Pass
        }
    })
    .await;
    assert_eq!(code, Some(0), "a role that does not write the log is a role all the same: {report}");
    for (what, expected) in [
        ("rights: blobs", "warning"),
        ("rights: versions", "ok"),
        ("rights: log", "warning"),
        ("rights: snapshots", "warning"),
        ("rights: images", "warning"),
    ] {
        assert_eq!(level(&report, what), expected, "{report}");
    }
    let (code, report) = check_with(&server, move |request| match request.method.as_str() {
        "PUT" if request.target.contains("/blobs/") => denied(),
        _ => Fault::Pass,
    })
    .await;
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(level(&report, "rights: blobs"), "ERROR", "{report}");
    assert!(report.contains("AccessDenied"), "{report}");
}

#[tokio::test]
async fn credentials_that_are_not_accepted_are_told_from_a_bucket_that_is_away() {
    let server = S3Server::start().await;
    for (code, remedy) in [
        ("ExpiredToken", "renew them"),
        ("InvalidAccessKeyId", "correct AWS_ACCESS_KEY_ID"),
        ("RequestTimeTooSkewed", "set this machine's clock"),
    ] {
        let (rc, report) = check_with(&server, move |_| Fault::error("403 Forbidden", code)).await;
        assert_eq!(rc, Some(1), "{report}");
        assert!(report.contains(code) && report.contains(remedy), "{report}");
    }
}

#[tokio::test]
async fn a_bucket_in_another_region_is_told_with_that_region() {
    const MOVED: &str = "301 Moved Permanently\r\nx-amz-bucket-region: eu-west-1";
    let server = S3Server::start().await;
    let (code, report) = check_with(&server, |_| Fault::Answer(MOVED, String::new())).await;
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(level(&report, "region"), "ERROR", "{report}");
    assert!(report.contains("remedy: export AWS_REGION=eu-west-1"), "{report}");
}

#[tokio::test]
async fn a_folder_is_checked_as_far_as_it_can_be() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("made/objects");
    let folder = folder.to_str().unwrap();
    let missing = bucket("http://127.0.0.1:1", &["check", folder]).await;
    assert_eq!(missing.status.code(), Some(1), "{}", stdout(&missing));
    assert!(!Path::new(folder).exists(), "a check creates nothing");
    let made = bucket("http://127.0.0.1:1", &["init", folder]).await;
    let report = stdout(&made);
    assert!(made.status.success(), "{report}{}", stderr(&made));
    assert_eq!(level(&report, "create-only"), "ok");
    assert!(!report.contains("versioning"), "{report}");
    let mut left = walk(Path::new(folder));
    left.sort();
    assert_eq!(left, ["collect/clock"], "only the clock's object stays");
}

/// Files below a folder.
fn walk(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => found.push(path.strip_prefix(folder).unwrap().to_string_lossy().into_owned()),
            }
        }
    }
    found
}

#[tokio::test]
async fn hostile_locations_are_refused_with_the_remedy() {
    for (location, remedy) in [
        ("s3://../x", "give letters"),
        ("s3://models/../x", "give plain names"),
        ("s3://", "give s3://BUCKET/PREFIX"),
        ("s3://key:hidden@models", "belong in the environment"),
        ("models", "give s3://models for a bucket"),
        ("gs://models", "other schemes are not known"),
        ("http://models", "other schemes are not known"),
        ("memory:", "give s3://BUCKET/PREFIX or a folder"),
        ("", "neither"),
    ] {
        for command in ["check", "init"] {
            let refused = bucket("http://127.0.0.1:1", &[command, location]).await;
            assert_eq!(refused.status.code(), Some(1), "{location}");
            assert!(stderr(&refused).contains(remedy), "{location}: {}", stderr(&refused));
            assert!(!stderr(&refused).contains("hidden"), "{}", stderr(&refused));
        }
    }
    let name = bucket("http://127.0.0.1:1", &["init", "s3://Bad_Name"]).await;
    assert_eq!(name.status.code(), Some(1));
}
