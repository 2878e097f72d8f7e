//! The connection: how it is made, and how everyone on it learns that it was lost.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Subscriber, jetstream};
use millrace_schemas::limits;
use tokio::sync::watch;
use tokio::time::Instant;

use super::publish::Publisher;
use crate::port::QueueError;
use crate::settings::QueueSettings;

/// Messages of one subscription that wait to be read. Above it they are dropped and read anew after the gap
/// is found. The server's flow control allows 32 MB, which is this many messages of 64 bytes.
const SUBSCRIPTION_MESSAGES: usize = 512 * 1024;
/// Commands that wait to be written to the socket; above it callers wait.
const COMMANDS: usize = 8_192;
/// Bytes read from the socket at once.
const READ_BYTES: u16 = 65_535;
/// Longest pause between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// How to connect, and what to make on the server.
#[derive(Debug, Clone)]
pub struct JetStreamOptions {
    /// Servers that keep a copy of each stream: 1, 3 or 5.
    pub replicas: usize,
    /// Where streams are kept.
    pub storage: Storage,
    /// How leases and ids behave.
    pub settings: QueueSettings,
    /// Who we are.
    pub credentials: Credentials,
    /// Encryption; `None` leaves it to the URL (`tls://`) and the server.
    pub tls: Option<Tls>,
    /// First token of all our reply subjects. Where each user has its own, none can listen to another's
    /// replies. `None` is the client's default, `_INBOX`.
    pub inbox_prefix: Option<String>,
    /// How long the first connection may take.
    pub connect_timeout: Duration,
}

impl Default for JetStreamOptions {
    fn default() -> Self {
        Self {
            replicas: 1,
            storage: Storage::File,
            settings: QueueSettings::default(),
            credentials: Credentials::Anonymous,
            tls: None,
            inbox_prefix: None,
            connect_timeout: Duration::from_millis(limits::REQUEST_TIMEOUT_MS),
        }
    }
}

/// Where streams are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// On disk.
    File,
    /// In the servers' memory: gone with them.
    Memory,
}

/// Who we are.
#[derive(Clone)]
pub enum Credentials {
    /// Nobody, or what the URL says (`nats://user:password@host`).
    Anonymous,
    /// A `.creds` file, as `nsc` writes it.
    File(PathBuf),
    /// The seed of an NKey, `SU…`.
    NKey(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::NKey(_) => f.write_str("NKey(…)"),
        }
    }
}

/// Encryption.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// PEM file of the authority that signed the server's certificate; `None` uses the system's.
    pub authority: Option<PathBuf>,
    /// PEM files of our own certificate and its key, where the server asks for one.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// What all sides of the adapter share.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(super) context: jetstream::Context,
    pub(super) publisher: Publisher,
    pub(super) options: JetStreamOptions,
    epoch: watch::Receiver<u64>,
}

impl Connection {
    pub(super) async fn open(url: &str, name: &str, options: JetStreamOptions) -> Result<Self, QueueError> {
        let (epoch_sender, epoch) = watch::channel(0);
        let settings = settings(name, &options, epoch_sender).await?;
        let client = connect(url, settings, options.connect_timeout).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(Duration::from_millis(limits::REQUEST_TIMEOUT_MS));
        let publisher = Publisher::start(client.clone(), epoch.clone()).await?;
        Ok(Self { client, context, publisher, options, epoch })
    }

    /// Grows whenever the connection is lost.
    pub(super) fn epoch(&self) -> watch::Receiver<u64> {
        self.epoch.clone()
    }

    /// Waits for an answer, or for the connection to be lost and the answer with it.
    pub(super) async fn answer<T>(&self, answer: impl Future<Output = T>) -> Result<T, String> {
        let mut epoch = self.epoch();
        epoch.mark_unchanged();
        tokio::select! {
            answer = answer => Ok(answer),
            _ = epoch.changed() => Err("the connection was lost".into()),
        }
    }

    pub(super) async fn subscribe(
        &self,
        action: &'static str,
        subject: &str,
    ) -> Result<Subscriber, QueueError> {
        let unavailable =
            |e: async_nats::SubscribeError| QueueError::Unavailable { action, reason: e.to_string() };
        self.client.subscribe(subject.to_owned()).await.map_err(unavailable)
    }
}

async fn settings(
    name: &str,
    options: &JetStreamOptions,
    epoch: watch::Sender<u64>,
) -> Result<ConnectOptions, QueueError> {
    let mut settings = ConnectOptions::new()
        .name(name)
        .subscription_capacity(SUBSCRIPTION_MESSAGES)
        .client_capacity(COMMANDS)
        .read_buffer_capacity(READ_BYTES)
        .request_timeout(Some(Duration::from_millis(limits::REQUEST_TIMEOUT_MS)))
        .ping_interval(Duration::from_secs(10))
        .reconnect_delay_callback(|tries| {
            // Never at once: whoever holds a subscription that must not be renewed needs time to drop it.
            let tries = u32::try_from(tries).unwrap_or(u32::MAX).clamp(1, 100);
            RECONNECT_PAUSE.min(Duration::from_millis(20) * tries)
        })
        .event_callback(move |event| {
            match event {
                // Only the loss counts: what is asked for from then on goes out on the next connection.
                Event::Disconnected | Event::Closed => epoch.send_modify(|n| *n += 1),
                Event::Connected => tracing::debug!("connected"),
                Event::SlowConsumer(sid) => tracing::warn!(sid, "messages dropped: read too slowly"),
                Event::ServerError(e) => tracing::warn!(error = %e, "the server complains"),
                Event::ClientError(e) => tracing::debug!(error = %e, "connection trouble"),
                Event::LameDuckMode | Event::Draining => {}
            }
            std::future::ready(())
        });
    if let Some(prefix) = &options.inbox_prefix {
        settings = settings.custom_inbox_prefix(prefix);
    }
    if let Some(tls) = &options.tls {
        settings = settings.require_tls(true);
        if let Some(authority) = &tls.authority {
            settings = settings.add_root_certificates(authority.clone());
        }
        if let Some((certificate, key)) = &tls.certificate {
            settings = settings.add_client_certificate(certificate.clone(), key.clone());
        }
    }
    match &options.credentials {
        Credentials::Anonymous => Ok(settings),
        Credentials::NKey(seed) => Ok(settings.nkey(seed.clone())),
        Credentials::File(path) => settings.credentials_file(path).await.map_err(|e| QueueError::Refused {
            action: "connect",
            reason: format!("credentials path={}: {e}", path.display()),
        }),
    }
}

async fn connect(url: &str, settings: ConnectOptions, timeout: Duration) -> Result<Client, QueueError> {
    let give_up = Instant::now() + timeout;
    let mut pause = Duration::from_millis(20);
    loop {
        let error = match settings.clone().connect(url).await {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        let reason = format!("url={url}: {error}");
        let hopeless = matches!(
            error.kind(),
            ConnectErrorKind::ServerParse
                | ConnectErrorKind::Authentication
                | ConnectErrorKind::AuthorizationViolation
        );
        if hopeless {
            return Err(QueueError::Refused { action: "connect", reason });
        }
        if Instant::now() >= give_up {
            return Err(QueueError::Unavailable { action: "connect", reason });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_PAUSE);
    }
}
