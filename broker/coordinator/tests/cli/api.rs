//! Commands that ask a coordinator.

use super::support::{Coordinated, run_file, stderr, stdout};

#[tokio::test]
async fn a_run_is_handed_in_once_seen_and_ended() {
    let place = Coordinated::start().await;
    let file = run_file("counter.toml");
    let file = file.to_string_lossy();

    assert_eq!(stdout(&place.run(&["list"]).await), "no runs; `millrace submit RUN.toml` hands one in\n");
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
    // `submit` checks before it sends, so the wrong field must be one that only the coordinator could know.
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
