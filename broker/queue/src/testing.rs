//! For tests: a nats-server, three of them in a cluster, or an S3 server of their own, on free ports, with a
//! folder of its own, gone when dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use cluster::TestCluster;
pub use s3::{S3Server, settings as s3_settings};
pub use s3_proxy::{Fault, S3Proxy, S3Request};
use tempfile::TempDir;

use crate::jetstream::{JetStream, JetStreamOptions};
use millrace_server::{Server, ServerError, ServerOptions};

pub use millrace_objects::{gate, signed};
pub use millrace_server::free_port;

mod cluster;
mod s3;
mod s3_proxy;

/// A nats-server for one test.
#[derive(Debug)]
pub struct TestServer {
    options: ServerOptions,
    server: Option<Server>,
    /// Dropped last, when nothing writes into it any more.
    folder: TempDir,
}

impl TestServer {
    /// Starts a server with an empty folder.
    ///
    /// # Panics
    /// There is no nats-server, or it does not start; the message has the remedy.
    pub async fn start() -> Self {
        Self::start_with(None).await
    }

    /// As [`TestServer::start`], with a configuration.
    ///
    /// # Panics
    /// There is no nats-server, or it does not start; the message has the remedy.
    pub async fn start_with(config: Option<std::path::PathBuf>) -> Self {
        Self::start_as(|options| options.config = config).await
    }

    /// As [`TestServer::start`], with options set by `set`.
    ///
    /// # Panics
    /// There is no nats-server, or it does not start; the message has the remedy.
    pub async fn start_as(set: impl FnOnce(&mut ServerOptions)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // It starts again on the same port after a kill.
        let port = Some(free_port().expect("a free port"));
        let mut options = ServerOptions { port, ..ServerOptions::in_folder(folder.path().join("nats")) };
        set(&mut options);
        let server = Server::start(&options).await.unwrap_or_else(|e| panic!("{e}"));
        Self { options, server: Some(server), folder }
    }

    /// Where clients connect.
    ///
    /// # Panics
    /// The server was killed and not started again.
    #[must_use]
    pub fn url(&self) -> &str {
        self.server.as_ref().expect("the server runs").url()
    }

    /// The server's process.
    ///
    /// # Panics
    /// The server was killed and not started again.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.server.as_ref().expect("the server runs").pid()
    }

    /// A folder that lives as long as the server, for whatever else the test needs.
    #[must_use]
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Connects to it and makes the streams.
    ///
    /// # Panics
    /// It does not answer.
    pub async fn connect(&self, options: JetStreamOptions) -> Arc<JetStream> {
        use crate::port::Queue;
        let queue = JetStream::connect(self.url(), "test", options).await.expect("the server answers");
        queue.ensure_topology().await.expect("the server makes streams");
        queue
    }

    /// Kills it as `kill -9` does.
    pub async fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.kill().await;
        }
    }

    /// The folder that holds its streams; only to be changed while it is killed.
    #[must_use]
    pub fn streams(&self) -> std::path::PathBuf {
        self.options.folder.join("streams")
    }

    /// Starts it again on the same port and folder.
    ///
    /// # Errors
    /// It does not start.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.server = Some(Server::start(&self.options).await?);
        Ok(())
    }
}

/// Bytes that a connection has received since it was opened.
#[must_use]
pub fn received_bytes(queue: &JetStream) -> u64 {
    queue.connection.client.statistics().in_bytes.load(Ordering::Relaxed)
}
