//! A TCP proxy in front of nats-server, one for each process: its connection can be cut, slowed down, or made
//! to swallow everything, without the process or the server knowing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;
/// Chunks of one direction that wait to be passed on. With the sockets' buffers, all that a slow or deaf
/// connection holds.
const WAITING: usize = 64;
/// Time to reach a server before the next is tried.
const CONNECT: Duration = Duration::from_secs(1);

/// What the proxy does with what comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes it on.
    Through,
    /// Closes all connections, and new ones as soon as they are made.
    Cut,
    /// Passes it on that much later.
    Delay(Duration),
    /// Takes it and passes nothing on; connections stay open. What was held is passed on afterwards, as TCP
    /// does when a partition heals.
    Blackhole,
}

/// A proxy. It ends when it is dropped, and all its connections with it.
#[derive(Debug)]
pub struct Proxy {
    url: String,
    mode: watch::Sender<Mode>,
    listening: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of the loopback interface. A new connection goes to the next of `servers` that
    /// takes it.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(servers: Vec<SocketAddr>) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("nats://{}", listener.local_addr()?);
        let (mode, modes) = watch::channel(Mode::Through);
        let listening = tokio::spawn(listen(listener, servers.into(), modes));
        Ok(Self { url, mode, listening })
    }

    /// Where clients connect.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Does otherwise from now on.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

/// Consumes connections, produces a pair of pumps for each. Waits for connections. Ends with the proxy: the
/// sender of modes is dropped, which ends every connection. On failure: the connection is dropped.
async fn listen(listener: TcpListener, servers: Arc<[SocketAddr]>, modes: watch::Receiver<Mode>) {
    let next = Arc::new(AtomicUsize::new(0));
    while let Ok((client, _)) = listener.accept().await {
        let (servers, modes, next) = (servers.clone(), modes.clone(), next.clone());
        tokio::spawn(async move {
            let cut = cut(modes.clone());
            tokio::select! {
                () = cut => {}
                () = join(client, &servers, &next, &modes) => {}
            }
        });
    }
}

/// Waits until connections are cut, or the proxy is gone.
async fn cut(mut modes: watch::Receiver<Mode>) {
    let _ = modes.wait_for(|mode| *mode == Mode::Cut).await;
}

/// Waits until bytes may pass. Returns the delay, or `None` when the proxy is gone.
async fn open(modes: &mut watch::Receiver<Mode>) -> Option<Duration> {
    let mode = modes.wait_for(|mode| *mode != Mode::Blackhole).await.ok()?;
    Some(match *mode {
        Mode::Delay(by) => by,
        Mode::Through | Mode::Cut | Mode::Blackhole => Duration::ZERO,
    })
}

async fn join(client: TcpStream, servers: &[SocketAddr], next: &AtomicUsize, modes: &watch::Receiver<Mode>) {
    if open(&mut modes.clone()).await.is_none() {
        return;
    }
    let Some(server) = reach(servers, next).await else { return };
    // Neither side's small messages wait for more.
    if client.set_nodelay(true).and(server.set_nodelay(true)).is_err() {
        return;
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    // Whichever side ends first ends both.
    tokio::select! {
        () = pump(from_client, to_server, modes.clone()) => {}
        () = pump(from_server, to_client, modes.clone()) => {}
    }
}

async fn reach(servers: &[SocketAddr], next: &AtomicUsize) -> Option<TcpStream> {
    for _ in servers {
        let server = servers[next.fetch_add(1, Ordering::Relaxed) % servers.len()];
        if let Ok(Ok(stream)) = tokio::time::timeout(CONNECT, TcpStream::connect(server)).await {
            return Some(stream);
        }
    }
    None
}

/// Consumes bytes of one side, produces them on the other, as the mode permits. Waits for bytes,
/// then for the mode, then for the other side. Ends when either side does.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut modes: watch::Receiver<Mode>) {
    let (sender, mut chunks) = mpsc::channel::<(Instant, Vec<u8>)>(WAITING);
    let read = async move {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            match from.read_buf(&mut chunk).await {
                Ok(1..) if sender.send((Instant::now(), chunk)).await.is_ok() => {}
                Ok(_) | Err(_) => return,
            }
        }
    };
    let write = async move {
        while let Some((arrived, chunk)) = chunks.recv().await {
            let Some(delay) = open(&mut modes).await else { return };
            tokio::time::sleep_until(arrived + delay).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}

#[cfg(test)]
mod tests;
