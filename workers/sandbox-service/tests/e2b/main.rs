//! The service as E2B's own client drives it, and what that client does not do.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};

mod readme;
#[path = "../rock/service.rs"]
mod service;
#[path = "../rock/drive.rs"]
mod drive;
use service::{KEY, OTHER, PATIENCE, Service, service};

/// A sandbox as a client knows it.
struct Sandbox {
    id: String,
    token: String,
}

/// A message of a stream.
fn frame(flags: u8, text: &str) -> Vec<u8> {
    [&[flags][..], &u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

impl Service {
    fn json(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let headers = [("X-API-Key", KEY), ("Content-Type", "application/json")];
        let (status, text) = self.ask(method, path, &headers, body.to_string().as_bytes());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn create(&self, body: &Value) -> Sandbox {
        let (status, made) = self.json("POST", "/v2/sandboxes", body);
        let text = |name: &str| made[name].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        assert_eq!(status, 201, "{made}");
        Sandbox { id: text("sandboxID"), token: text("envdAccessToken") }
    }

    /// A call within a sandbox.
    fn call(&self, of: &Sandbox, path: &str, content: &str, body: &[u8]) -> (u16, String) {
        self.ask("POST", path, &of.headers(content), body)
    }

    fn drive_e2b(&self, part: &str) {
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2b_client.py");
        self.drive(&driver, &[OTHER, part], &self.environment());
    }

    fn environment(&self) -> [(&str, &str); 3] {
        [("E2B_API_URL", &self.address), ("E2B_SANDBOX_URL", &self.address), ("E2B_API_KEY", KEY)]
    }
}

impl Sandbox {
    fn headers<'s>(&'s self, content: &'s str) -> [(&'s str, &'s str); 3] {
        [("E2b-Sandbox-Id", &self.id), ("X-Access-Token", &self.token), ("Content-Type", content)]
    }
}

const STREAM: &str = "application/connect+json";

#[test]
fn e2bs_own_client_uses_a_sandbox() {
    service(&[]).drive_e2b("life");
}

#[test]
fn e2bs_own_client_is_told_what_is_gone_what_is_anothers_and_what_is_wrong() {
    service(&[]).drive_e2b("end");
}

#[test]
fn e2bs_own_client_lists_and_uses_many_at_once() {
    service(&[]).drive_e2b("lists");
}

/// A server on this machine that answers each request with one word. Tells when a connection without a
/// request ended.
fn pages() -> (u16, std::sync::mpsc::Receiver<()>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (tell, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let tell = tell.clone();
            std::thread::spawn(move || {
                let mut head = [0; 4096];
                if stream.read(&mut head).unwrap_or(0) > 0 {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\npage");
                } else {
                    let _ = tell.send(());
                }
            });
        }
    });
    (port, ended)
}

#[test]
fn e2bs_own_client_opens_hosts_that_the_operator_allows() {
    let (port, ended) = pages();
    // The name has an address of IPv6, too, on some machines.
    let private = format!("127.0.0.1:{port},[::1]:{port}");
    let name = format!("localhost:{port}");
    let service = service(&["--network", &name, "--network-private", &private]);
    let port = port.to_string();
    let [api, sandboxes, key] = service.environment();
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2b_client.py");
    service.drive(&driver, &[OTHER, "network"], &[api, sandboxes, key, ("SERVER_PORT", &port)]);
    ended.recv_timeout(PATIENCE).expect("an open connection ends with its sandbox");
}

#[test]
fn the_example_of_the_readme_works() {
    let example = readme::example("from e2b");
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("example.py");
    std::fs::write(&program, format!("{example}\nprint('done')\n")).unwrap();
    let service = service(&[]);
    service.drive(&program, &[], &service.environment());
    assert_eq!(service.json("GET", "/v2/sandboxes", &json!({})).1, json!([]), "it left nothing");
}

#[test]
fn terminals_that_cannot_be_are_told_what_is_wrong() {
    let service = service(&[]);
    let sandbox = service.create(&json!({ "templateID": "base" }));
    let start = |pty: &str| frame(0, &format!("{{\"process\":{{\"cmd\":\"true\"}},\"pty\":{pty}}}"));
    let update = |pty: &str| format!("{{\"process\":{{\"pid\":1}},\"pty\":{pty}}}").into_bytes();
    let (size, large) = ("{\"size\":{\"cols\":8,\"rows\":8}}", "{\"size\":{\"cols\":70000,\"rows\":1}}");
    for (call, content, body, status, words) in [
        ("Start", STREAM, start(large), 200, "65535"),
        ("Start", STREAM, start("{}"), 200, "pty.size"),
        ("Start", STREAM, start("{\"size\":{\"cols\":1}}"), 200, "pty.size"),
        ("Update", "application/json", update(size), 404, "Pid(1)"),
        ("Update", "application/json", b"{}".to_vec(), 400, "process"),
    ] {
        let (found, said) = service.call(&sandbox, &format!("/process.Process/{call}"), content, &body);
        assert!(found == status && said.contains(words), "{call}: {found} {said}");
    }
}

#[test]
fn calls_that_cannot_be_are_told_what_is_wrong() {
    let service = service(&[]);
    let sandbox = service.create(&json!({ "templateID": "base" }));
    let start = frame(0, "{\"process\":{\"cmd\":\"true\"}}");
    let mut cut = start.clone();
    cut.pop();
    for (path, content, body, status, words) in [
        ("/process.Process/List", "application/json", b"{".to_vec(), 200, "processes"),
        ("/process.Process/SendInput", "application/json", b"{".to_vec(), 400, "EOF"),
        ("/process.Process/SendInput", "application/proto", b"".to_vec(), 501, "JSON alone"),
        (
            "/process.Process/SendInput",
            "application/json",
            b"{\"process\":{\"pid\":1},\"input\":{\"stdin\":\"!\"}}".to_vec(),
            404,
            "Pid(1)",
        ),
        (
            "/process.Process/SendSignal",
            "application/json",
            b"{\"process\":{\"tag\":\"none\"}}".to_vec(),
            404,
            "none",
        ),
        ("/filesystem.Filesystem/WatchDir", STREAM, frame(0, "{}"), 200, "not watched"),
        ("/process.Process/Start", "application/json", start.clone(), 200, "send application/connect+json"),
        ("/process.Process/Start", STREAM, cut, 200, "cut off"),
        ("/process.Process/Start", STREAM, b"".to_vec(), 200, "cut off"),
        ("/process.Process/Start", STREAM, frame(1, "{}"), 200, "compressed"),
        ("/process.Process/Start", STREAM, b"\0\xff\xff\xff\xff{".to_vec(), 200, "4294967295"),
        ("/process.Process/Start", STREAM, frame(0, "{\"process\":{}}"), 200, "cmd"),
        ("/process.Process/Start", STREAM, frame(0, "{\"process\":{\"cmd\":\"\"}}"), 200, "name a program"),
        ("/process.Process/StreamInput", STREAM, frame(0, "{\"data\":{\"input\":{}}}"), 200, "first message"),
        ("/files", "application/octet-stream", b"x".to_vec(), 400, "name a file"),
        ("/files?path=x", "multipart/form-data", b"x".to_vec(), 400, "boundary"),
        ("/files?path=x&username=admin", "application/octet-stream", b"x".to_vec(), 401, "one user"),
        ("/no/such", "application/json", b"{}".to_vec(), 404, "E2B's /sandboxes"),
    ] {
        let (found, said) = service.call(&sandbox, path, content, &body);
        assert!(found == status && said.contains(words), "{path} {content}: {found} {said}");
    }
    let asked = |headers: &[(&str, &str)]| service.ask("POST", "/process.Process/List", headers, b"{}");
    let (status, said) = asked(&[]);
    assert!(status == 400 && said.contains("E2B_SANDBOX_URL"), "{status} {said}");
    let (status, said) = asked(&[("E2b-Sandbox-Id", "../x"), ("X-Access-Token", &sandbox.token)]);
    assert!(status == 502 && said.contains("was not found"), "{status} {said}");
    let (status, said) = asked(&[("E2b-Sandbox-Id", &sandbox.id), ("X-Api-Key", KEY)]);
    assert!(status == 401 && said.contains("token"), "{status} {said}");
    let host = format!("49983-{}.sandboxes.example:8080", sandbox.id);
    let (status, said) = asked(&[("Host", &host), ("X-Access-Token", &sandbox.token)]);
    assert!(status == 200 && said.contains("processes"), "{status} {said}");
    let (status, said) = service.ask("GET", "/", &[("Host", &host.replace("49983", "8000"))], b"");
    assert!(status == 403 && said.contains("token"), "{status} {said}");
    // A file that would be larger than it may be, once it is unpacked.
    let bomb = {
        use std::io::Write;
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for _ in 0..300 {
            to.write_all(&vec![0; 1 << 20]).unwrap();
        }
        to.finish().unwrap()
    };
    let mut headers = sandbox.headers("application/octet-stream").to_vec();
    headers.push(("Content-Encoding", "gzip"));
    let (status, said) = service.ask("POST", "/files?path=bomb", &headers, &bomb);
    assert!(status == 413 && said.contains("bytes"), "{status} {said}");
}

#[test]
fn a_client_that_does_not_read_is_told_what_it_missed_and_the_command_goes_on() {
    let service = service(&[]);
    let sandbox = service.create(&json!({ "templateID": "base" }));
    let line = "head -c 200000000 /dev/zero; touch /tmp/written; sleep 3000";
    let asked = json!({ "process": { "cmd": "/bin/bash", "args": ["-c", line] }, "stdin": false });
    let body = frame(0, &asked.to_string());
    let mut slow = service.send("POST", "/process.Process/Start", &sandbox.headers(STREAM), &body);
    let began = Instant::now();
    let stat = json!({ "path": "/tmp/written" }).to_string();
    let written = || {
        service.call(&sandbox, "/filesystem.Filesystem/Stat", "application/json", stat.as_bytes()).0 == 200
    };
    while !written() {
        assert!(began.elapsed() < PATIENCE, "the command waits for who does not read");
    }
    let mut all = Vec::new();
    slow.read_to_end(&mut all).unwrap();
    let tail = String::from_utf8_lossy(&all[all.len().saturating_sub(1_000)..]).into_owned();
    assert!(tail.contains("data_loss") && tail.contains("32 MiB"), "{tail}");
    let (_, listed) = service.call(&sandbox, "/process.Process/List", "application/json", b"{}");
    assert!(listed.contains("\"pid\":1"), "{listed}");
}

#[test]
fn older_clients_are_served_and_no_more_are_made_than_may_be() {
    let service = service(&["--most", "2"]);
    let (status, made) =
        service.json("POST", "/sandboxes", &json!({ "templateID": "base", "secure": false }));
    assert!(status == 201 && made["envdAccessToken"].is_string(), "{status} {made}");
    let second = service.create(&json!({ "templateID": "base", "metadata": { "n": "2" } }));
    let (status, said) = service.json("POST", "/v2/sandboxes", &json!({ "templateID": "base" }));
    assert!(status == 429 && said["message"].as_str().unwrap().contains("2 sandboxes"), "{status} {said}");
    let (_, listed) = service.json("GET", "/sandboxes?metadata=n%3D2", &json!({}));
    assert!(listed.as_array().unwrap().len() == 1 && listed[0]["sandboxID"] == second.id, "{listed}");
    assert_eq!(service.json("DELETE", &format!("/sandboxes/{}", second.id), &json!({})).0, 204);
    assert_eq!(service.json("DELETE", &format!("/sandboxes/{}", second.id), &json!({})).0, 404);
    service.create(&json!({ "templateID": "base" }));
}

#[test]
fn a_sandbox_with_a_time_of_its_own_does_not_end_for_being_idle() {
    let service = service(&["--idle-s", "1"]);
    let sandbox = service.create(&json!({ "templateID": "base", "timeout": 600 }));
    let rock = json!({ "image": "base" });
    let (_, made) = service.json("POST", "/apis/envs/sandbox/v1/start", &rock);
    let idle = made["result"]["sandbox_id"].as_str().unwrap_or_else(|| panic!("{made}"));
    let there = |id: &str| service.json("GET", &format!("/sandboxes/{id}"), &json!({})).0 == 200;
    let began = Instant::now();
    while there(idle) {
        assert!(began.elapsed() < PATIENCE, "nobody uses it");
    }
    assert!(there(&sandbox.id));
    // One that ends when nobody uses it gets a time of its own once its client sets one.
    let (_, made) = service.json("POST", "/apis/envs/sandbox/v1/start", &rock);
    let idle = made["result"]["sandbox_id"].as_str().unwrap().to_owned();
    let path = format!("/sandboxes/{idle}/timeout");
    assert_eq!(service.json("POST", &path, &json!({ "timeout": 600 })).0, 204);
    let began = Instant::now();
    while began.elapsed().as_secs() < 2 {
        assert!(there(&idle));
    }
}
