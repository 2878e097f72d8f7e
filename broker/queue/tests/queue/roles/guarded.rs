//! A guarded nats-server, and clients of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, ConnectError, ConnectOptions, Event};
use millrace_auth::Guarded;
use millrace_queue::testing::TestServer;
use millrace_queue::{ConnectArgs, JetStream, JetStreamOptions, Queue};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Longest wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Fleet {
    pub(crate) server: TestServer,
    pub(crate) folder: TempDir,
}

/// Keys and certificates in a folder of their own.
pub(crate) fn keys() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let guarded = Guarded {
        hosts: vec![],
        together: vec![],
        listen: "127.0.0.1:4222".into(),
        place: folder.path().to_owned(),
        sync: "2m".into(),
        unix_ms: 1_700_000_000_000,
    };
    millrace_auth::write(folder.path(), &guarded.make().unwrap(), false).unwrap();
    folder
}

impl Fleet {
    pub(crate) async fn start() -> Self {
        Self::start_changed(|_| ()).await
    }

    /// With another configuration than was made.
    pub(crate) async fn start_changed(change: impl FnOnce(&mut String)) -> Self {
        let folder = keys();
        let path = folder.path().join("nats-server.conf");
        let mut config = std::fs::read_to_string(&path).unwrap();
        change(&mut config);
        std::fs::write(&path, config).unwrap();
        let server = TestServer::start_with(Some(folder.path().join("nats-server.conf"))).await;
        Self { server, folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn args(&self, user: &str) -> ConnectArgs {
        ConnectArgs {
            nats_nkey: Some(self.path(&format!("keys/{user}.nk"))),
            nats_tls_ca: Some(self.path("tls/ca.pem")),
            ..ConnectArgs::default()
        }
    }

    pub(crate) fn options(&self, user: &str) -> JetStreamOptions {
        self.args(user).options().unwrap()
    }

    pub(crate) async fn queue(&self, user: &str) -> Arc<JetStream> {
        JetStream::connect(self.server.url(), user, self.options(user)).await.unwrap()
    }

    /// A coordinator's queue, with everything made on the server.
    pub(crate) async fn coordinator(&self) -> Arc<JetStream> {
        let queue = self.queue("coordinator").await;
        queue.ensure_topology().await.unwrap();
        queue
    }

    /// A client that may try whatever it likes, and what the server complains of.
    pub(crate) async fn raw(&self, user: &str) -> (Client, UnboundedReceiver<String>) {
        let (client, complaints) = self.try_raw(user).await;
        (client.unwrap(), complaints)
    }

    /// The same where the server may refuse it.
    pub(crate) async fn try_raw(
        &self,
        user: &str,
    ) -> (Result<Client, ConnectError>, UnboundedReceiver<String>) {
        let text = std::fs::read_to_string(self.path(&format!("keys/{user}.nk"))).unwrap();
        let seed = text.lines().last().unwrap().to_owned();
        let (sender, complaints) = unbounded_channel();
        let client = ConnectOptions::new()
            .nkey(seed)
            .require_tls(true)
            .add_root_certificates(self.path("tls/ca.pem"))
            .custom_inbox_prefix(format!("_INBOX_{user}"))
            .event_callback(move |event| {
                if let Event::ServerError(e) = event {
                    let _ = sender.send(e.to_string());
                }
                std::future::ready(())
            })
            .connect(self.server.url())
            .await;
        (client, complaints)
    }
}
