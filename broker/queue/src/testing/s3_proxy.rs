//! A proxy in front of an S3 server: a test decides what becomes of each request. Every request has a connection
//! of its own to the server, so that one can be cut in its middle.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;
/// Bytes of a request's head.
const MAX_HEAD: usize = 64 * 1024;

/// The head of a request.
#[derive(Debug, Clone)]
pub struct S3Request {
    /// `GET`, `PUT` …
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Its headers, as they were sent.
    pub headers: String,
    /// Bytes of the body.
    pub length: usize,
    /// When it arrived.
    pub at: Instant,
}

/// What becomes of a request.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The server answers it.
    Pass,
    /// The proxy answers it: a status with its words, a body.
    Answer(&'static str, String),
    /// It is read, and never answered.
    Hang,
    /// The connection ends when the server has got so many bytes of the body.
    CutUpload(usize),
    /// The connection ends when the client has got so many bytes of the answer.
    CutDownload(usize),
    /// One bit of the body is changed on the way to the server.
    Corrupt,
}

impl Fault {
    /// An error of S3.
    #[must_use]
    pub fn error(status: &'static str, code: &str) -> Self {
        Self::Answer(status, format!("<Error><Code>{code}</Code><Message>by the test</Message></Error>"))
    }
}

/// Decides what becomes of requests.
type Rule = Arc<dyn Fn(&S3Request) -> Fault + Send + Sync>;

/// A proxy. It ends when it is dropped, and all its connections with it.
pub struct S3Proxy {
    endpoint: String,
    seen: Arc<Mutex<Vec<S3Request>>>,
    listening: JoinHandle<()>,
}

impl fmt::Debug for S3Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("S3Proxy").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl S3Proxy {
    /// Listens on a free port, in front of the server at `endpoint`.
    ///
    /// # Panics
    /// There is no free port, or the endpoint is none.
    pub async fn start(endpoint: &str, rule: impl Fn(&S3Request) -> Fault + Send + Sync + 'static) -> Self {
        let server: SocketAddr = endpoint.trim_start_matches("http://").parse().expect("http://IP:PORT");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
        let (rule, seen): (Rule, Arc<Mutex<Vec<S3Request>>>) = (Arc::new(rule), Arc::default());
        let listening = tokio::spawn(listen(listener, server, rule, seen.clone()));
        Self { endpoint, seen, listening }
    }

    /// Where clients connect.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The requests that came, in their order.
    #[must_use]
    pub fn seen(&self) -> Vec<S3Request> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for S3Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Consumes connections, produces a task for each. Waits for connections. Ends when it is aborted, and the
/// tasks with it. On failure of one: its connection is dropped.
async fn listen(listener: TcpListener, server: SocketAddr, rule: Rule, seen: Arc<Mutex<Vec<S3Request>>>) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        let (rule, seen) = (rule.clone(), seen.clone());
        connections.spawn(async move { serve(client, server, &rule, &seen).await });
        while connections.try_join_next().is_some() {}
    }
}

async fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    rule: &Rule,
    seen: &Mutex<Vec<S3Request>>,
) -> std::io::Result<()> {
    let Some((request, head, body)) = read_head(&mut client).await? else { return Ok(()) };
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(request.clone());
    let fault = rule(&request);
    if request.headers.to_ascii_lowercase().contains("expect: 100-continue") {
        client.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    let mut server = match fault {
        Fault::Answer(status, content) => {
            drain(&mut client, request.length - body.len()).await?;
            let length = content.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nETag: \"0\"\r\nConnection: close\r\n\r\n"
            );
            let content = if request.method == "HEAD" { String::new() } else { content };
            client.write_all(format!("{head}{content}").as_bytes()).await?;
            return client.shutdown().await;
        }
        Fault::Hang => {
            // Until the client gives up.
            while client.read(&mut [0; CHUNK]).await? > 0 {}
            return Ok(());
        }
        Fault::Pass | Fault::CutUpload(_) | Fault::CutDownload(_) | Fault::Corrupt => {
            TcpStream::connect(server).await?
        }
    };
    server.write_all(head.as_bytes()).await?;
    let limit = if let Fault::CutUpload(bytes) = fault { bytes } else { usize::MAX };
    let flip = u8::from(matches!(fault, Fault::Corrupt));
    if send_body(&mut client, &mut server, body, request.length, limit, flip).await? {
        return Ok(());
    }
    let mut left = if let Fault::CutDownload(bytes) = fault { bytes } else { usize::MAX };
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let read = server.read(&mut chunk).await?;
        if read == 0 {
            return client.shutdown().await;
        }
        client.write_all(&chunk[..read.min(left)]).await?;
        left -= read.min(left);
    }
    Ok(())
}

/// The head of a request, the same with the demand that the server closes, and what came of the body.
async fn read_head(client: &mut TcpStream) -> std::io::Result<Option<(S3Request, String, Vec<u8>)>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at;
        }
        if client.read_buf(&mut bytes).await? == 0 || bytes.len() > MAX_HEAD {
            return Ok(None);
        }
    };
    let body = bytes.split_off(end + 4);
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let (first, headers) = head.split_once("\r\n").unwrap_or((&head, ""));
    let mut words = first.split(' ').map(str::to_owned);
    let length = headers.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let request = S3Request {
        method: words.next().unwrap_or_default(),
        target: words.next().unwrap_or_default(),
        headers: headers.to_owned(),
        length: length.unwrap_or(0).max(body.len()),
        at: Instant::now(),
    };
    // A connection serves one request. The header is not signed.
    Ok(Some((request, format!("{head}\r\nConnection: close\r\n\r\n"), body)))
}

/// Sends a body on, with `flip` on its first byte. Returns whether it was cut.
async fn send_body(
    client: &mut TcpStream,
    server: &mut TcpStream,
    begun: Vec<u8>,
    length: usize,
    limit: usize,
    mut flip: u8,
) -> std::io::Result<bool> {
    let (mut chunk, mut sent) = (begun, 0);
    loop {
        if let Some(first) = chunk.first_mut() {
            *first ^= std::mem::take(&mut flip);
        }
        if sent + chunk.len() >= limit {
            server.write_all(&chunk[..limit - sent]).await?;
            return Ok(true);
        }
        server.write_all(&chunk).await?;
        sent += chunk.len();
        if sent >= length {
            return Ok(false);
        }
        chunk.resize(CHUNK, 0);
        let read = client.read(&mut chunk).await?;
        if read == 0 {
            return Ok(true);
        }
        chunk.truncate(read);
    }
}

async fn drain(client: &mut TcpStream, mut left: usize) -> std::io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let read = client.read(&mut chunk).await?;
        if read == 0 {
            break;
        }
        left -= read.min(left);
    }
    Ok(())
}
