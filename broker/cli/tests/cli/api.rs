//! Commands that ask a coordinator.

use millrace_queue::{EventLog, JetStream, JetStreamOptions, RequestError, request};
use millrace_schemas::limits;

use super::support::{Coordinated, PATIENCE, run_file, stderr, stdout};

#[tokio::test]
async fn a_run_is_handed_in_once_seen_and_ended() {
    let place = Coordinated::start().await;
    let file = run_file("counter.toml");
    let file = file.to_string_lossy();

    assert_eq!(stdout(&place.run(&["list"]).await), "no runs; `millrace submit RUN.toml` submits one\n");
    let output = place.run(&["submit", &file]).await;
    assert!(output.status.success(), "{}", stderr(&output));

    let again = place.run(&["submit", &file]).await;
    assert!(!again.status.success());
    assert!(stderr(&again).contains("counter"), "{}", stderr(&again));
    assert!(stderr(&again).contains("exists"), "{}", stderr(&again));

    let status = stdout(&place.run(&["status"]).await);
    assert!(status.starts_with("counter: starting, v0 of 50"), "{status}");
    let unknown = place.run(&["status", "other"]).await;
    assert!(!unknown.status.success());
    assert!(stderr(&unknown).contains("known: counter"), "{}", stderr(&unknown));

    let ledger = stdout(&place.run(&["ledger"]).await);
    assert!(ledger.contains("balanced"), "{ledger}");

    let output = place.run(&["cancel", "counter"]).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let list = stdout(&place.run(&["list"]).await);
    assert!(list.starts_with("counter: cancelled"), "{list}");
    let watched = place.run(&["watch", "counter"]).await;
    assert!(!watched.status.success(), "a cancelled run is no success");
    assert!(stdout(&watched).contains("cancelled by request"), "{}", stdout(&watched));
}

#[tokio::test]
async fn a_wrong_field_is_named_by_the_coordinator_too() {
    let place = Coordinated::start().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    // `submit` checks before it sends, so the wrong field must be one that only the coordinator
    // could know.
    std::fs::write(
        &path,
        r#"{"name":"x","steps":1,"model":{"kind":"scripted"},"environment":{"name":"go"}}"#,
    )
    .unwrap();
    let output = place.run(&["submit", &path.to_string_lossy()]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("environment"), "{}", stderr(&output));
}

#[tokio::test]
async fn what_is_not_there_is_said() {
    let place = Coordinated::start().await;
    assert_eq!(stdout(&place.run(&["dead", "ls"]).await), "no dead letters\n");
    let output = place.run(&["dead", "requeue", "7"]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("seq=7"), "{}", stderr(&output));
    let output = place.run(&["weights", "ls", "nobody"]).await;
    assert!(stderr(&output).contains("run=nobody has no versions"), "{}", stderr(&output));
    let output = place.run(&["cancel", "nobody"]).await;
    assert!(!output.status.success());
    assert!(stderr(&output).contains("nobody"), "{}", stderr(&output));
}

#[tokio::test]
async fn requests_that_nobody_should_send_are_refused_and_change_nothing() {
    let place = Coordinated::start().await;
    let queue = JetStream::connect(&place.url, "test", JetStreamOptions::default()).await.unwrap();
    let end = queue.log_end().await.unwrap();
    let sound = serde_json::json!({
        "name": "x", "steps": 1, "model": { "kind": "scripted" }, "environment": { "name": "counter", "turns": 1 }
    });
    let mut bodies: Vec<Vec<u8>> = vec![
        b"[".repeat(limits::MAX_REQUEST_BYTES),
        b"{\"a\":".repeat(40_000),
        vec![b' '; limits::MAX_REQUEST_BYTES + 1],
        vec![0xff; 64],
        b"{\"run\":\"../../x\"}".to_vec(),
        b"{\"run\":\"nobody\",\"more\":1}".to_vec(),
        b"null".to_vec(),
        b"1e999".to_vec(),
    ];
    for (field, value) in [
        ("steps", serde_json::json!(-1)),
        ("steps", serde_json::json!(u64::MAX)),
        ("name", serde_json::json!("all")),
        ("name", serde_json::json!("a.b")),
        ("rewards", serde_json::json!([{ "rule": "success", "weight": 1e300 }])),
        ("rollout", serde_json::json!({ "groups_per_step": u32::MAX, "group_size": u32::MAX })),
        ("unknown", serde_json::json!(1)),
    ] {
        let mut body = sound.clone();
        body[field] = value;
        bodies.push(serde_json::to_vec(&body).unwrap());
    }
    let whole = serde_json::to_vec(&sound).unwrap();
    bodies.extend((1..whole.len()).map(|cut| whole[..cut].to_vec()));
    for body in &bodies {
        for endpoint in ["submit", "status", "ledger", "pause", "resume", "cancel", "rm", "list"] {
            let answer = request(&queue, endpoint, body.clone().into(), PATIENCE).await;
            let words = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
            let Err(RequestError::Api(error)) = answer else { panic!("{endpoint} {words}: {answer:?}") };
            assert!((400..500).contains(&error.code) && !error.message.is_empty(), "{words}: {error:?}");
        }
    }
    assert_eq!(queue.log_end().await.unwrap(), end, "something was written");
    assert!(place.run(&["list"]).await.status.success());
}
