//! The service as ROCK's own client drives it, and what that client does not do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

mod service;
mod drive;
mod ports;
mod restart;
mod keys;
mod sessions;
mod talking;
use service::{KEY, OTHER, PATIENCE, Service, service};

impl Service {
    /// What the service answers.
    fn rock(&self, key: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let key = format!("Bearer {key}");
        let headers = [("Authorization", key.as_str()), ("Content-Type", "application/json")];
        let path = format!("/apis/envs/sandbox/v1{path}");
        let (status, text) = self.ask(method, &path, &headers, body.as_bytes());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.rock(KEY, "POST", path, &body.to_string()).1
    }

    fn start(&self) -> String {
        let made = self.post("/start", &json!({ "image": "python:3.11" }));
        made["result"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }
}

#[test]
fn rocks_own_client_is_served() {
    let folder = tempfile::tempdir().unwrap();
    // Sandboxes read the cache as nobody.
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (store, cache) = (folder.path().join("store"), folder.path().join("cache"));
    std::fs::create_dir(&store).unwrap();
    let images = ["--image-store", store.to_str().unwrap(), "--image-cache", cache.to_str().unwrap()];
    let service = service(&[&images[..], &["--image-commits", "saved-"]].concat());
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rock_client.py");
    service.drive(&driver, &[&service.address, KEY, OTHER], &[]);
}

/// ROCK's requests have no field for it.
#[test]
fn a_sandbox_reaches_the_hosts_that_are_opened_unasked_and_no_other() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (name, other) = (format!("localhost:{port}"), format!("other.test:{port}"));
    let (both, private) = (format!("{name},{other}"), format!("127.0.0.1:{port},[::1]:{port}"));
    let service = service(&["--network", &both, "--network-private", &private, "--network-unasked", &name]);
    let id = service.start();
    let asked = |host: &str| {
        let program = format!(
            "import socket; s = socket.create_connection(('127.0.0.1', 4181)); \
             s.sendall(b'CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'); print(s.recv(99).decode()[9:12])"
        );
        let execute = json!({ "sandbox_id": id, "command": ["python3", "-c", program] });
        let told = service.post("/execute", &execute);
        told["result"]["stdout"].as_str().unwrap_or_else(|| panic!("{told}")).trim().to_owned()
    };
    assert_eq!((asked(&name), asked(&other)), ("200".to_owned(), "403".to_owned()));
    let execute = json!({ "sandbox_id": id, "command": "echo $https_proxy" });
    assert_eq!(service.post("/execute", &execute)["result"]["stdout"], "http://127.0.0.1:4181\n");
}

#[test]
fn nobody_without_a_key_is_served_and_each_key_sees_its_own() {
    let service = service(&[]);
    let id = service.start();
    let execute = json!({ "sandbox_id": id, "command": "echo mine" }).to_string();
    let (status, said) = service.rock("", "POST", "/execute", &execute);
    assert_eq!((status, said["status"].as_str()), (401, Some("Failed")), "{said}");
    for (path, body) in [
        ("/execute", execute.clone()),
        ("/stop", json!({ "sandbox_id": id }).to_string()),
        ("/read_file", json!({ "sandbox_id": id, "path": "/etc/hosts" }).to_string()),
    ] {
        let (_, said) = service.rock(OTHER, "POST", path, &body);
        assert_eq!(
            (said["status"].as_str(), said["result"]["code"].as_u64()),
            (Some("Failed"), Some(4_000)),
            "{path}: {said}"
        );
    }
    let (_, said) = service.rock(OTHER, "GET", &format!("/is_alive?sandbox_id={id}"), "");
    assert_eq!(said["result"]["is_alive"], false, "{said}");
    let (_, said) = service.rock(KEY, "POST", "/execute", &execute);
    assert_eq!(said["result"]["stdout"], "mine\n", "{said}");
}

#[test]
fn a_wrong_request_is_told_what_is_wrong() {
    let service = service(&[]);
    let id = service.start();
    for (path, body, words) in [
        ("/execute", "{".to_owned(), "EOF"),
        ("/execute", json!({ "sandbox_id": id }).to_string(), "command"),
        ("/execute", json!({ "sandbox_id": id, "command": 5 }).to_string(), "command"),
        ("/execute", json!({ "sandbox_id": id, "command": [] }).to_string(), "name a program"),
        ("/execute", json!({ "sandbox_id": "../x", "command": "true" }).to_string(), "not there"),
        ("/execute", json!({ "sandbox_id": id, "command": "true", "cwd": "/none" }).to_string(), "/none"),
        ("/execute", json!({ "sandbox_id": id, "command": "true", "timeout": 1e300 }).to_string(), "above 0"),
        ("/create_session", json!({ "sandbox_id": id, "session": "" }).to_string(), "characters"),
        ("/create_session", json!({ "sandbox_id": id, "remote_user": "admin" }).to_string(), "one user"),
        (
            "/run_in_session",
            json!({ "sandbox_id": id, "session": "none", "command": "true" }).to_string(),
            "create it",
        ),
        (
            "/read_file",
            json!({ "sandbox_id": id, "path": "/etc/hosts", "encoding": "utf-16" }).to_string(),
            "latin-1",
        ),
        ("/start", json!({ "image": "" }).to_string(), "image"),
        ("/commit", json!({ "sandbox_id": id }).to_string(), "image_tag"),
        ("/commit", json!({ "sandbox_id": id, "image_tag": "a" }).to_string(), "--image-store"),
        ("/archive", "{}".to_owned(), "no such path"),
    ] {
        let (_, said) = service.rock(KEY, "POST", path, &body);
        let error = said["error"].as_str().unwrap_or_else(|| panic!("{path} {body}: {said}"));
        assert!(said["status"] == "Failed" && error.contains(words), "{path} {body}: {said}");
    }
}

#[test]
fn a_sandbox_that_nobody_uses_ends_although_its_state_is_asked_for() {
    let service = service(&["--idle-s", "2"]);
    let (idle, used) = (service.start(), service.start());
    let status = |id: &str| service.rock(KEY, "GET", &format!("/get_status?sandbox_id={id}"), "").1;
    let began = Instant::now();
    // One command that takes longer than the idle time is use all the while.
    let long = json!({ "sandbox_id": used, "command": "sleep 5; echo on" });
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| service.post("/execute", &long));
        while status(&idle)["status"] == "Success" {
            assert!(began.elapsed() < PATIENCE, "asking for its state keeps it");
        }
        asked.join().unwrap()
    });
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(asked["result"]["stdout"], "on\n", "{asked}");
    let known =
        service.rock(KEY, "GET", &format!("/get_status?sandbox_id={idle}&include_all_states=True"), "").1;
    assert_eq!(known["result"]["status"]["stopped"]["message"], "nobody used it", "{known}");
    let statistics = service.rock(KEY, "GET", &format!("/get_sandbox_statistics?sandbox_id={used}"), "").1;
    assert_eq!(statistics["result"]["commands"], 1, "{statistics}");
}

#[test]
fn no_more_are_made_than_may_be() {
    let service = service(&["--most", "2"]);
    let first = service.start();
    service.start();
    let refused = service.post("/start", &json!({ "image": "python:3.11" }));
    assert!(refused["error"].as_str().unwrap().contains("2 sandboxes"), "{refused}");
    assert_eq!(service.post("/stop", &json!({ "sandbox_id": first }))["status"], "Success");
    service.start();
}
