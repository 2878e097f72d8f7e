//! The real program, and the least of HTTP to ask it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) const KEY: &str = "key-of-the-first-owner";
pub(crate) const OTHER: &str = "key-of-another-owner";
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// The real program; it ends with this value.
pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) address: String,
    _folder: tempfile::TempDir,
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn service(args: &[&str]) -> Service {
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
    /// Sends a request, and leaves its answer unread.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address.trim_start_matches("http://")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let named: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let host = if headers.iter().any(|(name, _)| *name == "Host") { "" } else { "Host: x\r\n" };
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\n{host}Connection: close\r\n{named}Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Status and body of an answer; one that comes in chunks has their lengths in it.
    pub(crate) fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> (u16, String) {
        let mut answer = Vec::new();
        self.send(method, path, headers, body).read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer);
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }
}
