//! Sandboxes that are stopped and started again.

use std::time::Instant;

use serde_json::{Value, json};

use super::service::{KEY, OTHER, PATIENCE, Service, service};

impl Service {
    fn start_kept(&self, id: &str, keep_s: u64) {
        let start =
            json!({ "image": "python:3.11", "sandbox_id": id, "disk": "16m", "auto_delete_seconds": keep_s });
        let made = self.post("/start", &start);
        assert_eq!(made["status"], "Success", "{made}");
    }

    fn of(&self, path: &str, id: &str) -> Value {
        self.post(path, &json!({ "sandbox_id": id }))
    }

    fn shell(&self, id: &str, line: &str) -> String {
        let ran = self.post("/execute", &json!({ "sandbox_id": id, "command": line }));
        ran["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{ran}")).trim().to_owned()
    }
}

fn refused(said: &Value, words: &str) {
    let error = said["error"].as_str().unwrap_or_else(|| panic!("{said}"));
    assert!(said["status"] == "Failed" && error.contains(words), "{words:?}: {said}");
}

#[test]
fn a_stopped_sandbox_starts_again_once() {
    let service = service(&[]);
    service.start_kept("kept", 1000);
    service.shell("kept", "echo mine > file; sleep 1000 > /dev/null 2>&1 &");
    refused(&service.of("/restart", "kept"), "it runs");
    assert_eq!(service.of("/stop", "kept")["status"], "Success");
    refused(&service.of("/stop", "kept"), "not there");
    refused(&service.post("/execute", &json!({ "sandbox_id": "kept", "command": "true" })), "not there");
    let named = json!({ "image": "python:3.11", "sandbox_id": "kept" });
    refused(&service.post("/start", &named), "stopped one of this name");
    // Another owner sees nothing of it.
    for path in ["/restart", "/delete"] {
        let (_, said) = service.rock(OTHER, "POST", path, &json!({ "sandbox_id": "kept" }).to_string());
        refused(&said, "not there");
    }
    // Many ask at once, and one gets it.
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asked: Vec<_> = (0..8).map(|_| scope.spawn(|| service.of("/restart", "kept"))).collect();
        asked.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let succeeded = answers.iter().filter(|said| said["status"] == "Success").count();
    assert_eq!(succeeded, 1, "{answers:?}");
    assert_eq!(service.shell("kept", "cat file; pgrep -c sleep"), "mine\n0");
    for id in ["../kept", "never"] {
        refused(&service.of("/restart", id), "not there");
    }
}

#[test]
fn files_of_a_stopped_sandbox_go_when_they_are_deleted_or_their_time_is_over() {
    let service = service(&["--keep-stopped-s", "1000"]);
    let unasked = service.start();
    for (id, path) in
        [(unasked.as_str(), "/stop"), (unasked.as_str(), "/restart"), (unasked.as_str(), "/stop")]
    {
        assert_eq!(service.of(path, id)["status"], "Success", "{path}");
    }
    assert_eq!(service.of("/delete", &unasked)["status"], "Success");
    refused(&service.of("/restart", &unasked), "nothing of it is left");
    // One that runs is deleted, too.
    service.start_kept("runs", 1000);
    assert_eq!(service.of("/delete", "runs")["status"], "Success");
    refused(&service.of("/restart", "runs"), "nothing of it is left");
    service.start_kept("never", 0);
    assert_eq!(service.of("/stop", "never")["status"], "Success");
    refused(&service.of("/restart", "never"), "auto_delete_seconds");
    service.start_kept("short", 1);
    assert_eq!(service.of("/stop", "short")["status"], "Success");
    let began = Instant::now();
    // Its name is free again when its files are gone.
    while service.post("/start", &json!({ "image": "python:3.11", "sandbox_id": "short" }))["status"]
        != "Success"
    {
        assert!(began.elapsed() < PATIENCE, "its files stay");
    }
}

#[test]
fn one_that_runs_takes_the_place_of_the_one_that_was_stopped_first() {
    let service = service(&["--most", "2"]);
    for id in ["first", "second"] {
        service.start_kept(id, 1000);
        assert_eq!(service.of("/stop", id)["status"], "Success");
    }
    service.start();
    refused(&service.of("/restart", "first"), "nothing of it is left");
    assert_eq!(service.of("/restart", "second")["status"], "Success");
    refused(&service.post("/start", &json!({ "image": "python:3.11" })), "2 sandboxes");
}

#[test]
fn bounds_hold_over_restarts_and_what_cannot_start_stays() {
    let service = service(&[]);
    service.start_kept("full", 1000);
    service.shell("full", "head -c 9000000 /dev/zero > large");
    for _ in 0..3 {
        assert_eq!(service.of("/stop", "full")["status"], "Success");
        let again = service.of("/restart", "full");
        assert_eq!(
            (&again["result"]["disk"], &again["result"]["is_alive"]),
            (&json!("16m"), &json!(true)),
            "{again}"
        );
    }
    let (_, ran) = service.rock(
        KEY,
        "POST",
        "/execute",
        &json!({ "sandbox_id": "full", "command": "head -c 9000000 /dev/zero > more" }).to_string(),
    );
    assert!(ran.to_string().contains("No space left"), "{ran}");
    service.shell("full", "rm large; mv /tmp /was; ln -s /etc /tmp");
    assert_eq!(service.of("/stop", "full")["status"], "Success");
    for _ in 0..2 {
        refused(&service.of("/restart", "full"), "symlink at /tmp");
    }
    assert_eq!(service.of("/delete", "full")["status"], "Success");
}

#[test]
fn a_client_that_does_not_wait_loses_nothing() {
    let service = service(&[]);
    service.start_kept("left", 1000);
    service.shell("left", "echo mine > file");
    let key = format!("Bearer {KEY}");
    let headers = [("Authorization", key.as_str()), ("Content-Type", "application/json")];
    let body = json!({ "sandbox_id": "left" }).to_string();
    let began = Instant::now();
    for round in 0..20 {
        for (path, done) in [("/stop", "not there"), ("/restart", "it runs")] {
            // It is asked again where the request was not heard, and again answered where it was.
            loop {
                let path = format!("/apis/envs/sandbox/v1{path}");
                drop(service.send("POST", &path, &headers, body.as_bytes()));
                let said = service.of(path.trim_start_matches("/apis/envs/sandbox/v1"), "left");
                let error = said["error"].as_str().unwrap_or_default();
                if said["status"] == "Success" || error.contains(done) {
                    break;
                }
                let meanwhile = ["being stopped", "being started", "not there", "it runs"];
                assert!(meanwhile.iter().any(|words| error.contains(words)), "round {round}: {said}");
                assert!(began.elapsed() < PATIENCE, "round {round}: {said}");
            }
        }
        assert_eq!(service.shell("left", "cat file"), "mine", "round {round}");
    }
}
