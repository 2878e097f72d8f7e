//! The service as ROCK's own client drives it, and what that client does not do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const KEY: &str = "key-of-the-first-owner";
const OTHER: &str = "key-of-another-owner";
const PATIENCE: Duration = Duration::from_secs(120);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The real program; it ends with this value.
struct Service {
    child: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn service(args: &[&str]) -> Service {
    let program = Path::new(env!("CARGO_BIN_EXE_millrace-sandboxes"));
    let sandbox = program.with_file_name("millrace-sandbox");
    assert!(sandbox.exists(), "build it first: cargo build --release -p millrace-sandbox");
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys");
    std::fs::write(&keys, format!("{KEY}\n{OTHER}\n")).unwrap();
    let mut child = Command::new(program)
        .args(["--listen", "127.0.0.1:0", "--warm", "4", "--keys"])
        .arg(keys)
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
    Service { child, address, _folder: folder }
}

impl Service {
    /// What the service answers, by the least of HTTP.
    fn ask(&self, key: &str, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = TcpStream::connect(self.address.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!(
            "{method} /apis/envs/sandbox/v1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let (_, text) = answer.split_once("\r\n\r\n").unwrap();
        (status, serde_json::from_str(text).unwrap_or(Value::String(text.to_owned())))
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask(KEY, "POST", path, &body.to_string()).1
    }

    fn start(&self) -> String {
        let made = self.post("/start", &json!({ "image": "python:3.11" }));
        made["result"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned()
    }
}

#[test]
fn rocks_own_client_is_served() {
    let python = root().join("target/sandbox-sdks/bin/python");
    assert!(python.exists(), "the clients are missing: run workers/sandbox-service/tests/setup.sh");
    let service = service(&[]);
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rock_client.py");
    let output = Command::new(python).arg(driver).args([&service.address, KEY, OTHER]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.trim_end().ends_with("done"),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn nobody_without_a_key_is_served_and_each_key_sees_its_own() {
    let service = service(&[]);
    let id = service.start();
    let execute = json!({ "sandbox_id": id, "command": "echo mine" }).to_string();
    let (status, said) = service.ask("", "POST", "/execute", &execute);
    assert_eq!((status, said["status"].as_str()), (401, Some("Failed")), "{said}");
    for (path, body) in [
        ("/execute", execute.clone()),
        ("/stop", json!({ "sandbox_id": id }).to_string()),
        ("/read_file", json!({ "sandbox_id": id, "path": "/etc/hosts" }).to_string()),
    ] {
        let (_, said) = service.ask(OTHER, "POST", path, &body);
        assert_eq!(
            (said["status"].as_str(), said["result"]["code"].as_u64()),
            (Some("Failed"), Some(4_000)),
            "{path}: {said}"
        );
    }
    let (_, said) = service.ask(OTHER, "GET", &format!("/is_alive?sandbox_id={id}"), "");
    assert_eq!(said["result"]["is_alive"], false, "{said}");
    let (_, said) = service.ask(KEY, "POST", "/execute", &execute);
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
            "/run_in_session",
            json!({ "sandbox_id": id, "command": "x", "expect": ["y"] }).to_string(),
            "interactive",
        ),
        (
            "/read_file",
            json!({ "sandbox_id": id, "path": "/etc/hosts", "encoding": "utf-16" }).to_string(),
            "latin-1",
        ),
        ("/start", json!({ "image": "" }).to_string(), "image"),
        ("/commit", "{}".to_owned(), "no such path"),
    ] {
        let (_, said) = service.ask(KEY, "POST", path, &body);
        let error = said["error"].as_str().unwrap_or_else(|| panic!("{path} {body}: {said}"));
        assert!(said["status"] == "Failed" && error.contains(words), "{path} {body}: {said}");
    }
}

#[test]
fn a_sandbox_that_nobody_uses_ends_although_its_state_is_asked_for() {
    let service = service(&["--idle-s", "2"]);
    let (idle, used) = (service.start(), service.start());
    let status = |id: &str| service.ask(KEY, "GET", &format!("/get_status?sandbox_id={id}"), "").1;
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
        service.ask(KEY, "GET", &format!("/get_status?sandbox_id={idle}&include_all_states=True"), "").1;
    assert_eq!(known["result"]["status"]["stopped"]["message"], "nobody used it", "{known}");
    let statistics = service.ask(KEY, "GET", &format!("/get_sandbox_statistics?sandbox_id={used}"), "").1;
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
