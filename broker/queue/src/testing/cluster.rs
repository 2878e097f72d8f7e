//! Three nats-servers in a cluster.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use millrace_server::{ClusterMember, Server, ServerOptions, free_port};
use tempfile::TempDir;
use tokio::time::{Instant, timeout};

use crate::jetstream::{JetStream, JetStreamOptions};

/// Servers of a cluster.
const SERVERS: usize = 3;
/// Between two questions for a leader.
const LOOK: Duration = Duration::from_millis(20);

/// Questions that any replica may answer. Where one of three hangs, hardly ever are all answered.
const QUESTIONS: usize = 16;
/// How long a replica may take to be asked.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long each is waited for.
const ANSWER: Duration = Duration::from_millis(500);

/// Three nats-servers in a cluster for one test, `server-0` to `server-2`. They have just started: leaders may
/// not be elected yet.
#[derive(Debug)]
pub struct TestCluster {
    servers: Vec<Server>,
    /// Of the servers that are not started yet.
    waiting: Vec<ServerOptions>,
    folder: TempDir,
}

impl TestCluster {
    /// Starts all servers at once, with empty folders.
    ///
    /// # Panics
    /// There is no nats-server, or one does not start; the message has the remedy.
    pub async fn start() -> Self {
        let mut cluster = Self::start_partly(SERVERS).await;
        cluster.start_rest().await;
        cluster
    }

    /// Starts so many of the servers. They elect no leader before the others are there.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_partly(count: usize) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let peers: Vec<u16> = (0..SERVERS).map(|_| free_port().expect("a free port")).collect();
        let options = peers.iter().enumerate().map(|(number, port)| {
            let name = format!("server-{number}");
            let seat = ClusterMember { name: name.clone(), port: *port, peers: peers.clone() };
            ServerOptions { seat: Some(seat), ..ServerOptions::in_folder(folder.path().join(name)) }
        });
        let mut waiting: Vec<ServerOptions> = options.collect();
        let rest = waiting.split_off(count);
        let mut cluster = Self { servers: Vec::new(), waiting, folder };
        cluster.start_rest().await;
        cluster.waiting = rest;
        cluster
    }

    /// Starts the servers that wait.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_rest(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        let started = waiting.iter().map(async |options| Server::start(options).await);
        for server in join_all(started).await {
            self.servers.push(server.unwrap_or_else(|e| panic!("{e}")));
        }
    }

    /// A folder that lives as long as the cluster, for whatever else the test needs.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Connects to one of the servers; nothing is made.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connect(&self, number: usize, options: JetStreamOptions) -> Arc<JetStream> {
        let url = self.servers[number].url();
        JetStream::connect(url, "test", options).await.expect("the server answers")
    }

    /// Suspends a server as soon as it is one of those that answer for `stream`, of which it has a replica:
    /// that is some seconds after it has caught up. `number` must not be the server that is asked.
    ///
    /// # Panics
    /// It is gone, or is never asked.
    pub async fn suspend_replica(&self, asked: usize, number: usize, stream: &str) {
        let client = async_nats::connect(self.servers[asked].url()).await.expect("the server answers");
        let give_up = Instant::now() + PATIENCE;
        loop {
            self.servers[number].suspend().expect("it runs");
            for _ in 0..QUESTIONS {
                let last = r#"{"last_by_subj": ">"}"#;
                let question = client.request(format!("$JS.API.DIRECT.GET.{stream}"), last.into());
                if timeout(ANSWER, question).await.is_err() {
                    return;
                }
            }
            assert!(Instant::now() < give_up, "server-{number} never answers for {stream}");
            self.servers[number].resume().expect("it runs");
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The server that leads a stream, once there is the stream and a leader.
    ///
    /// # Panics
    /// The leader has another name than the servers here.
    pub async fn leader_of(&self, queue: &JetStream, stream: &str) -> usize {
        loop {
            if let Ok(Some(leader)) = queue.stream_leader(stream).await {
                let number = leader.strip_prefix("server-").and_then(|number| number.parse().ok());
                return number.expect("one of the servers here");
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// By number.
impl Deref for TestCluster {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.servers
    }
}
