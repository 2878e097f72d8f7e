//! What is read of whom.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;

use super::service::{KEY, PATIENCE, Service, service};

/// Paths below ROCK's, with methods.
const ROCK: [(&str, &str); 22] = [
    ("POST", "/start"),
    ("POST", "/start_async"),
    ("GET", "/is_alive"),
    ("GET", "/get_status"),
    ("GET", "/get_sandbox_statistics"),
    ("POST", "/stop"),
    ("POST", "/delete"),
    ("POST", "/restart"),
    ("POST", "/sandboxes/ID/restart"),
    ("POST", "/execute"),
    ("POST", "/create_session"),
    ("POST", "/run_in_session"),
    ("POST", "/close_session"),
    ("POST", "/read_file"),
    ("POST", "/write_file"),
    ("POST", "/upload"),
    ("POST", "/commit"),
    ("GET", "/commit/ID"),
    ("GET", "/sandboxes/ID/portforward"),
    ("POST", "/sandboxes/ID/proxy"),
    ("POST", "/sandboxes/ID/proxy/"),
    ("POST", "/sandboxes/ID/proxy/port/3000/x"),
];

/// The same of E2B's and of environments, from the root.
const OTHERS: [(&str, &str); 42] = [
    ("POST", "/sandboxes"),
    ("GET", "/sandboxes"),
    ("POST", "/v2/sandboxes"),
    ("GET", "/v2/sandboxes"),
    ("GET", "/sandboxes/ID"),
    ("DELETE", "/sandboxes/ID"),
    ("POST", "/sandboxes/ID/timeout"),
    ("POST", "/sandboxes/ID/connect"),
    ("POST", "/sandboxes/ID/resume"),
    ("POST", "/v2/sandboxes/ID/connect"),
    ("POST", "/sandboxes/ID/pause"),
    ("POST", "/snapshots"),
    ("POST", "/snapshots/x"),
    ("POST", "/templates"),
    ("POST", "/templates/x"),
    ("POST", "/v2/templates"),
    ("POST", "/v2/templates/x"),
    ("POST", "/v3/templates"),
    ("POST", "/v3/templates/x"),
    ("POST", "/volumes"),
    ("POST", "/volumes/x"),
    ("POST", "/secrets"),
    ("POST", "/secrets/x"),
    ("POST", "/process.Process/List"),
    ("POST", "/process.Process/Start"),
    ("POST", "/process.Process/Connect"),
    ("POST", "/process.Process/SendInput"),
    ("POST", "/process.Process/Update"),
    ("POST", "/process.Process/StreamInput"),
    ("POST", "/process.Process/CloseStdin"),
    ("POST", "/process.Process/SendSignal"),
    ("POST", "/filesystem.Filesystem/Stat"),
    ("POST", "/filesystem.Filesystem/ListDir"),
    ("POST", "/filesystem.Filesystem/MakeDir"),
    ("POST", "/filesystem.Filesystem/Move"),
    ("POST", "/filesystem.Filesystem/Remove"),
    ("GET", "/files?path=x"),
    ("POST", "/files?path=x"),
    ("POST", "/apis/v1/envs/gem/make"),
    ("POST", "/apis/v1/envs/gem/reset"),
    ("POST", "/apis/v1/envs/gem/step"),
    ("POST", "/apis/v1/envs/gem/close"),
];

impl Service {
    /// The first answer to who asks whether to send a large body, with a wrong key and a wrong token.
    fn before_the_body(&self, method: &str, path: &str, id: &str) -> String {
        let mut stream = TcpStream::connect(self.address.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let path = path.replace("ID", id);
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nExpect: 100-continue\r\n\
             Content-Length: 100000000\r\nContent-Type: multipart/form-data; boundary=b\r\n\
             Authorization: Bearer of-nobody-at-all\r\nE2b-Sandbox-Id: {id}\r\nX-Access-Token: wrong\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}

#[test]
fn no_body_is_read_of_who_has_no_key() {
    let service = service(&["--gem", "true"]);
    let id = service.start();
    let rock = ROCK.map(|(method, path)| (method, format!("/apis/envs/sandbox/v1{path}")));
    let others = OTHERS.map(|(method, path)| (method, path.to_owned()));
    for (method, path) in rock.into_iter().chain(others) {
        let answer = service.before_the_body(method, &path, &id);
        assert!(answer.starts_with("HTTP/1.1 401 "), "{method} {path}: {answer}");
    }
}

#[test]
fn only_a_file_may_be_large() {
    let service = service(&[]);
    let id = service.start();
    let large = "x".repeat(9 << 20);
    let (status, said) =
        service.rock(KEY, "POST", "/execute", &json!({ "sandbox_id": id, "command": large }).to_string());
    assert!(status == 413 && said["error"].as_str().unwrap().contains("8 MiB at most"), "{status} {said}");
    let written =
        service.post("/write_file", &json!({ "sandbox_id": id, "path": "large", "content": large }));
    assert_eq!(written["status"], "Success", "{written}");
}
