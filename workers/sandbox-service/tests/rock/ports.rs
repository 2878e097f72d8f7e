//! Servers within a sandbox, asked from outside.

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest;
use tungstenite::{HandshakeError, Message};

use super::service::{KEY, OTHER, PATIENCE, Service, service};

/// Says what it was asked; `/slow` answers in two parts, the second when `/home/user/go` is there;
/// `Upgrade: echo` is followed by what the client sends.
const SERVER: &str = r#"
import http.server, json, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *words): pass
    def do_GET(self):
        if self.headers.get("Upgrade") == "echo":
            self.send_response(101); self.send_header("Connection", "upgrade"); self.send_header("Upgrade", "echo")
            self.end_headers(); self.wfile.flush()
            while line := self.rfile.readline():
                self.wfile.write(b"echo " + line); self.wfile.flush()
            self.close_connection = True
            return
        if self.path == "/slow":
            self.send_response(200); self.send_header("Content-Length", "6"); self.end_headers()
            self.wfile.write(b"one"); self.wfile.flush()
            while not os.path.exists("/home/user/go"): time.sleep(0.001)
            self.wfile.write(b"two")
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        said = json.dumps({"method": self.command, "path": self.path, "bytes": len(body),
                           "headers": {name.lower(): value for name, value in self.headers.items()}}).encode()
        self.send_response(418); self.send_header("Content-Length", str(len(said))); self.end_headers()
        self.wfile.write(said)
    do_POST = do_GET
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Handler).serve_forever()
"#;

/// A sandbox whose server listens.
fn serving(service: &Service) -> String {
    let id = service.start();
    service.post("/write_file", &json!({ "sandbox_id": id, "path": "server.py", "content": SERVER }));
    let line =
        "python3 server.py >/dev/null 2>&1 & until (: < /dev/tcp/127.0.0.1/3000) 2>/dev/null; do :; done";
    let begun = service.post("/execute", &json!({ "sandbox_id": id, "command": line }));
    assert_eq!(begun["result"]["exit_code"], 0, "{begun}");
    id
}

fn at(id: &str, rest: &str) -> String {
    format!("/apis/envs/sandbox/v1/sandboxes/{id}/proxy{rest}")
}

#[test]
fn a_server_within_a_sandbox_is_asked_by_who_has_the_key() {
    let service = service(&[]);
    let id = serving(&service);
    let key = format!("Bearer {KEY}");
    let hop = [("Connection", "x-hop, X-Other"), ("X-Hop", "1"), ("X-Other", "1"), ("TE", "trailers")];
    let own = [&hop[..], &[("Authorization", key.as_str()), ("X-Mine", "kept")]].concat();
    // More than is held in between.
    let body = vec![b'x'; 20 << 20];
    let (status, said) = service.ask("POST", &at(&id, "/port/3000/a%20b/../c?x=1&y=%2F"), &own, &body);
    let said: Value = serde_json::from_str(&said).unwrap();
    let told = |name: &str| said["headers"][name].clone();
    assert_eq!(
        (status, said["method"].as_str(), said["bytes"].as_u64()),
        (418, Some("POST"), Some(20 << 20))
    );
    assert_eq!(said["path"], "/a%20b/../c?x=1&y=%2F");
    assert_eq!(
        (told("x-mine"), told("host"), told("x-forwarded-host")),
        (json!("kept"), json!("127.0.0.1:3000"), json!("x"))
    );
    for not_passed_on in ["authorization", "te", "x-hop", "x-other"] {
        assert!(told(not_passed_on).is_null(), "a sandbox learns no key: {said}");
    }
    // The port by the two other ways, and a key of the program's own.
    for (path, headers) in [
        ("", vec![("X-Key", KEY), ("X-Rock-Target-Port", "3000"), ("Authorization", "Bearer its-own")]),
        ("/?rock_target_port=3000&z=2", vec![("X-Key", KEY), ("Authorization", "Bearer its-own")]),
    ] {
        let (status, said) = service.ask("GET", &at(&id, path), &headers, b"");
        let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{status} {said}"));
        assert_eq!(said["path"], if path.is_empty() { "/" } else { "/?z=2" });
        assert_eq!(
            (&said["headers"]["authorization"], &said["headers"]["x-key"]),
            (&json!("Bearer its-own"), &Value::Null)
        );
    }
    let machines = service.address.rsplit(':').next().unwrap().to_owned();
    for (who, path, wanted, words) in [
        (OTHER, at(&id, "/port/3000/"), 404, "not there"),
        ("nobodys", at(&id, "/port/3000/"), 401, "no known key"),
        (KEY, at("../x", "/port/3000/"), 404, ""),
        (KEY, at(&id, "/"), 400, "name it once"),
        (KEY, at(&id, "/port/3000/?rock_target_port=1"), 400, "name it once"),
        (KEY, at(&id, "/port/0/"), 400, "1 to 65535"),
        (KEY, at(&id, "/port/x/"), 400, "1 to 65535"),
        (KEY, at(&id, "/port/3001/"), 502, "nothing answers"),
        // The machine's own loopback has a server there, which is another.
        (KEY, at(&id, &format!("/port/{machines}/")), 502, "nothing answers"),
    ] {
        let (status, said) = service.ask("GET", &path, &[("X-Key", who)], b"");
        let fits = said.contains(words) && !said.contains("set up");
        assert!(status == wanted && fits, "{path}: {status} {said}");
    }
}

#[test]
fn what_a_server_says_comes_as_it_is_said_and_a_connection_may_become_another() {
    let service = service(&[]);
    let id = serving(&service);
    let mut slow = service.send("GET", &at(&id, "/port/3000/slow"), &[("X-Key", KEY)], b"");
    let mut answer = String::new();
    while !answer.ends_with("one") {
        let mut part = [0; 1024];
        let read = slow.read(&mut part).unwrap();
        assert!(read > 0, "{answer}");
        answer += std::str::from_utf8(&part[..read]).unwrap();
    }
    service.post("/write_file", &json!({ "sandbox_id": id, "path": "go", "content": "" }));
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("onetwo"), "{answer}");

    let (mut raw, mut lines) = echoing(&service, &id);
    for word in ["hello", "again"] {
        writeln!(raw, "{word}").unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), format!("echo {word}"));
    }
    // With the sandbox the connection ends.
    let stopped = service.post("/stop", &json!({ "sandbox_id": id }));
    assert_eq!(stopped["status"], "Success", "{stopped}");
    assert!(lines.next().is_none());
    let (status, said) = service.ask("GET", &at(&id, "/port/3000/"), &[("X-Key", KEY)], b"");
    assert!(status == 404 && said.contains("not there"), "{status} {said}");
}

/// A connection that became another one.
fn echoing(service: &Service, id: &str) -> (TcpStream, Lines<BufReader<TcpStream>>) {
    let mut raw = TcpStream::connect(service.address.trim_start_matches("http://")).unwrap();
    raw.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\nX-Key: {KEY}\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
        at(id, "/port/3000/")
    );
    raw.write_all(head.as_bytes()).unwrap();
    let mut lines = BufReader::new(raw.try_clone().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "HTTP/1.1 101 Switching Protocols");
    let head: Vec<String> = lines.by_ref().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    assert!(head.iter().any(|line| line.eq_ignore_ascii_case("upgrade: echo")), "{head:?}");
    (raw, lines)
}

#[test]
fn a_connection_that_became_another_is_use_until_it_ends() {
    let service = service(&["--idle-s", "2"]);
    let id = serving(&service);
    let (mut raw, mut lines) = echoing(&service, &id);
    let headers = [("X-Key", KEY)];
    let path = format!("/apis/envs/sandbox/v1/is_alive?sandbox_id={id}");
    let is_alive = || service.ask("GET", &path, &headers, b"").1.contains("\"is_alive\":true");
    let silent = Instant::now();
    while silent.elapsed() < Duration::from_secs(5) {
        assert!(is_alive(), "a client is connected");
    }
    writeln!(raw, "hello").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "echo hello");
    raw.shutdown(Shutdown::Both).unwrap();
    let ended = Instant::now();
    while is_alive() {
        assert!(ended.elapsed() < PATIENCE, "nobody is connected");
    }
}

/// A connection to a port of a sandbox over a WebSocket, or the status and words of the refusal.
fn forwarded(
    service: &Service,
    key: &str,
    id: &str,
    query: &str,
) -> Result<tungstenite::WebSocket<std::net::TcpStream>, (u16, String)> {
    let address = service.address.trim_start_matches("http://");
    let path = format!("/apis/envs/sandbox/v1/sandboxes/{id}/portforward{query}");
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    request.headers_mut().insert("X-Key", key.parse().unwrap());
    let stream = std::net::TcpStream::connect(address).unwrap();
    match tungstenite::client::client(request, stream) {
        Ok((socket, _)) => Ok(socket),
        Err(HandshakeError::Failure(tungstenite::Error::Http(refused))) => {
            let words = refused.body().clone().unwrap_or_default();
            Err((refused.status().as_u16(), String::from_utf8(words).unwrap()))
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn any_tcp_passes_over_a_websocket_and_ends_with_either_side() {
    let service = service(&[]);
    let id = service.start();
    // Says back what it hears, and ends at a line `end`.
    let server = r#"
import socketserver
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        while (line := self.rfile.readline()) and line != b"end\n": self.wfile.write(line)
        open("/home/user/ended", "a").write("x")
socketserver.ThreadingTCPServer(("127.0.0.1", 4000), Handler).serve_forever()
"#;
    service.post("/write_file", &json!({ "sandbox_id": id, "path": "echo.py", "content": server }));
    let line =
        "python3 echo.py >/dev/null 2>&1 & until (: < /dev/tcp/127.0.0.1/4000) 2>/dev/null; do :; done";
    assert_eq!(
        service.post("/execute", &json!({ "sandbox_id": id, "command": line }))["result"]["exit_code"],
        0
    );
    let heard = |socket: &mut tungstenite::WebSocket<std::net::TcpStream>, bytes: usize| {
        let mut heard = Vec::new();
        while heard.len() < bytes {
            match socket.read().unwrap() {
                Message::Binary(part) => heard.extend_from_slice(&part),
                other => panic!("{other:?}"),
            }
        }
        heard
    };
    let mut socket = forwarded(&service, KEY, &id, "?port=4000").unwrap();
    // Bytes as they are, also those that are no text, in parts that are no lines, and more than a part.
    let large: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8 | 0x80).chain([b'\n']).collect();
    for part in large.chunks(100_001) {
        socket.send(Message::binary(part.to_vec())).unwrap();
    }
    assert!(heard(&mut socket, large.len()) == large);
    socket.send(Message::text("text\n")).unwrap();
    assert_eq!(heard(&mut socket, 5), b"text\n");
    // The server ends, then the client in another connection.
    socket.send(Message::binary(&b"end\n"[..])).unwrap();
    assert!(matches!(socket.read().unwrap(), Message::Close(_)));
    let mut other = forwarded(&service, KEY, &id, "?port=4000").unwrap();
    other.close(None).unwrap();
    let both = "until [ \"$(cat ended 2>/dev/null)\" = xxx ]; do :; done; echo both";
    let told = service.post("/execute", &json!({ "sandbox_id": id, "command": both, "timeout": 60 }));
    // The connection that looked whether it listens has ended too.
    assert_eq!(told["result"]["stdout"], "both\n", "{told}");

    for (key, sandbox, query, wanted, words) in [
        ("nobodys", id.as_str(), "?port=4000", 401, "no known key"),
        (OTHER, id.as_str(), "?port=4000", 404, "not there"),
        (KEY, "..%2Fx", "?port=4000", 404, "not there"),
        (KEY, id.as_str(), "?port=0", 400, "1 to 65535"),
        (KEY, id.as_str(), "", 400, "1 to 65535"),
        (KEY, id.as_str(), "?port=4001", 502, "nothing answers"),
    ] {
        let (status, said) = forwarded(&service, key, sandbox, query).err().unwrap();
        assert!(status == wanted && said.contains(words), "{sandbox}{query}: {status} {said}");
    }
    let mut last = forwarded(&service, KEY, &id, "?port=4000").unwrap();
    service.post("/stop", &json!({ "sandbox_id": id }));
    assert!(!matches!(last.read(), Ok(Message::Binary(_))), "with the sandbox the connection ends");
}
