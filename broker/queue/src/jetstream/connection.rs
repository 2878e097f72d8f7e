//! The connection: how it is opened, and how its users learn that it was lost.

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, Subscriber, jetstream};
use millrace_schemas::limits;
use tokio::sync::watch;
use tokio::time::Instant;

use super::outage::Outage;
use super::publish::Publisher;
use super::replicas::Replicas;
use super::violation::Violations;
use crate::port::QueueError;
use crate::settings::QueueSettings;
use millrace_objects::choose_ring;

/// Messages of one subscription that wait to be read. Beyond it, messages are dropped, and are read
/// again once the gap is found. The server's flow control allows 32 MB, which is this many messages
/// of 64 bytes.
const SUBSCRIPTION_MESSAGES: usize = 512 * 1024;
/// Commands that wait to be written to the socket; above it callers wait.
const COMMANDS: usize = 8_192;
/// Bytes read from the socket at once.
const READ_BYTES: u16 = 65_535;
/// Silence after which what makes nothing twice is asked again. Where two clients make the same stream of a cluster at
/// the same moment, the server answers one of them.
const ASK_AGAIN: Duration = Duration::from_secs(2);
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
    /// The client's identity.
    pub credentials: Credentials,
    /// Encryption; `None` leaves it to the URL (`tls://`) and the server.
    pub tls: Option<Tls>,
    /// The name of our user, for messages about missing rights.
    pub user: Option<String>,
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
            user: None,
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

/// The client's identity.
#[derive(Clone)]
pub enum Credentials {
    /// No identity, or that in the URL (`nats://user:password@host`).
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

/// State that all parts of the adapter share.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(super) context: jetstream::Context,
    /// For what is asked again: it waits for an answer [`ASK_AGAIN`] at most.
    pub(super) impatient: jetstream::Context,
    pub(super) publisher: Publisher,
    pub(super) options: JetStreamOptions,
    epoch: watch::Receiver<u64>,
    violations: Violations,
    replicas: Replicas,
}

impl Connection {
    pub(super) async fn open(url: &str, name: &str, options: JetStreamOptions) -> Result<Self, QueueError> {
        let (epoch_sender, epoch) = watch::channel(0);
        choose_ring();
        let violations = Violations::new(options.user.as_deref());
        let settings = settings(name, &options, epoch_sender, violations.clone()).await?;
        let client = connect(url, settings, &options).await?;
        let mut context = jetstream::new(client.clone());
        context.set_timeout(Duration::from_millis(limits::REQUEST_TIMEOUT_MS));
        let mut impatient = context.clone();
        impatient.set_timeout(ASK_AGAIN);
        let publisher = Publisher::start(client.clone(), epoch.clone(), violations.clone()).await?;
        let replicas = Replicas::default();
        Ok(Self { client, context, impatient, publisher, options, epoch, violations, replicas })
    }

    /// Grows whenever the connection is lost.
    pub(super) fn epoch(&self) -> watch::Receiver<u64> {
        self.epoch.clone()
    }

    /// Permission errors of the server.
    pub(super) fn violations(&self) -> &Violations {
        &self.violations
    }

    /// Waits for the reply to a request on `subject`. Fails when no reply will come: the connection
    /// is lost, or the server forbids the request.
    pub(super) async fn answer<T>(
        &self,
        action: &'static str,
        subject: &str,
        answer: impl Future<Output = T>,
    ) -> Result<T, QueueError> {
        let mut epoch = self.epoch();
        epoch.mark_unchanged();
        let mut heard = self.violations.listen();
        tokio::select! {
            answer = answer => Ok(answer),
            _ = epoch.changed() => {
                Err(QueueError::Unavailable { action, reason: "the connection was lost".into() })
            }
            () = Violations::forbidden(&mut heard, subject) => {
                Err(QueueError::Refused { action, reason: self.violations.reason(subject) })
            }
        }
    }

    /// As [`Self::answer`], of a question that any replica may answer.
    pub(super) async fn answer_of_any<F: Future>(
        &self,
        action: &'static str,
        subject: &str,
        ask: impl Fn() -> F,
    ) -> Result<F::Output, QueueError> {
        self.answer(action, subject, self.replicas.ask(ask)).await
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
    violations: Violations,
) -> Result<ConnectOptions, QueueError> {
    let outage = Outage::default();
    let mut settings = ConnectOptions::new()
        .name(name)
        .subscription_capacity(SUBSCRIPTION_MESSAGES)
        .client_capacity(COMMANDS)
        .read_buffer_capacity(READ_BYTES)
        .request_timeout(Some(Duration::from_millis(limits::REQUEST_TIMEOUT_MS)))
        .ping_interval(Duration::from_secs(10))
        .reconnect_delay_callback(|tries| {
            // Never at once: the owner of a subscription that must not be renewed needs time to
            // drop it.
            let tries = u32::try_from(tries).unwrap_or(u32::MAX).clamp(1, 100);
            RECONNECT_PAUSE.min(Duration::from_millis(20) * tries)
        })
        .event_callback(move |event| {
            match event {
                // Only the loss counts: later requests go out on the next connection.
                Event::Disconnected => {
                    epoch.send_modify(|n| *n += 1);
                    outage.begin();
                }
                Event::Closed => epoch.send_modify(|n| *n += 1),
                Event::Connected => outage.end(),
                Event::SlowConsumer(sid) => tracing::warn!(sid, "messages dropped: read too slowly"),
                Event::ServerError(e) => {
                    let words = e.to_string();
                    if !violations.hear(&words) {
                        tracing::warn!(error = words, "the server complains");
                    }
                }
                Event::ClientError(e) => outage.failed(&e.to_string()),
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

/// The URL, or the comma-separated list of URLs, without the parts before the `@`, for messages and
/// logs.
#[must_use]
pub fn without_password(url: &str) -> String {
    let plain: Vec<String> = addresses(url).into_iter().map(|address| part(address).0).collect();
    plain.join(",")
}

/// The URLs of a comma-separated list. A comma before an `@` may be one of a password, and
/// separates only where a scheme follows.
fn addresses(url: &str) -> Vec<&str> {
    let (mut found, mut start) = (Vec::new(), 0);
    for (at, _) in url.match_indices(',') {
        let rest = &url[at + 1..];
        let scheme = rest.split_once("://").is_some_and(|(s, _)| s.chars().all(|c| c.is_ascii_alphabetic()));
        if scheme || !rest.contains('@') {
            found.push(&url[start..at]);
            start = at + 1;
        }
    }
    found.push(&url[start..]);
    found
}

/// The URL without user and password, and the removed part.
fn part(url: &str) -> (String, Option<&str>) {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    match rest.rsplit_once('@') {
        Some((secret, host)) if scheme.is_empty() => (host.to_owned(), Some(secret)),
        Some((secret, host)) => (format!("{scheme}://{host}"), Some(secret)),
        None => (url.to_owned(), None),
    }
}

/// User and password are taken out of the URLs before the client library may write them down.
fn credentials(url: &str) -> Result<(String, Option<(String, String)>), QueueError> {
    let plain = without_password(url);
    let mut secrets: Vec<&str> = addresses(url).into_iter().filter_map(|address| part(address).1).collect();
    secrets.dedup();
    if secrets.len() > 1 {
        let reason = format!("url={plain}: the servers have different users; give one user for all");
        return Err(QueueError::Refused { action: "connect", reason });
    }
    let Some(secret) = secrets.first() else { return Ok((plain, None)) };
    let Some((user, password)) = secret.split_once(':') else {
        let reason = format!("url={plain}: a user without a password; give --nats-nkey or --nats-creds");
        return Err(QueueError::Refused { action: "connect", reason });
    };
    Ok((plain, Some((user.to_owned(), password.to_owned()))))
}

async fn connect(
    url: &str,
    mut settings: ConnectOptions,
    options: &JetStreamOptions,
) -> Result<Client, QueueError> {
    let (url, password) = credentials(url)?;
    let servers: Vec<&str> = url.split(',').collect();
    if let Some((user, password)) = password {
        settings = settings.user_and_password(user, password);
    }
    let give_up = Instant::now() + options.connect_timeout;
    let mut pause = Duration::from_millis(20);
    let mut reason = format!("url={url}: the server says nothing; does a nats-server listen there?");
    // A silent server that accepts the connection must not delay us beyond the timeout.
    while let Ok(attempt) = tokio::time::timeout_at(give_up, settings.clone().connect(&servers)).await {
        let error = match attempt {
            Ok(client) => return Ok(client),
            Err(error) => error,
        };
        reason = format!("url={url}: {}", words(&error));
        let hopeless = matches!(
            error.kind(),
            ConnectErrorKind::ServerParse
                | ConnectErrorKind::Authentication
                | ConnectErrorKind::AuthorizationViolation
        );
        if hopeless {
            return Err(QueueError::Refused { action: "connect", reason });
        }
        if Instant::now() + pause >= give_up {
            break;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_PAUSE);
    }
    Err(QueueError::Unavailable { action: "connect", reason })
}

/// An error with its sources: a wrong certificate is deep in the chain.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        next = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_leaves_the_url() {
        let secret = |user: &str, password: &str| Some((user.to_owned(), password.to_owned()));
        let parted = credentials("nats://me:s3:cr@t@host:4222").unwrap();
        assert_eq!(parted, ("nats://host:4222".to_owned(), secret("me", "s3:cr@t")));
        for plain in ["nats://host:4222", "host:4222", "tls://[::1]:4222", "not a url"] {
            assert_eq!(credentials(plain).unwrap(), (plain.to_owned(), None));
        }
        assert_eq!(without_password("me:s3cret@host:4222"), "host:4222");
        let list = credentials("nats://me:s3,cr@t@a:4222,nats://me:s3,cr@t@b:4222").unwrap();
        assert_eq!(list, ("nats://a:4222,nats://b:4222".to_owned(), secret("me", "s3,cr@t")));
        assert_eq!(credentials("tls://a,tls://b:1,c").unwrap(), ("tls://a,tls://b:1,c".to_owned(), None));
        let error = credentials("nats://me:one@a,nats://me:two@b").unwrap_err().to_string();
        assert!(
            !error.contains("one@") && !error.contains("two") && error.contains("different users"),
            "{error}"
        );
        let error = credentials("nats://SECRETTOKEN@host").unwrap_err().to_string();
        assert!(!error.contains("SECRETTOKEN") && error.contains("--nats-nkey"), "{error}");
    }
}
