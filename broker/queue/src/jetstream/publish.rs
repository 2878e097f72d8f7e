//! Messages that the server must store. All acknowledgements come back over one subscription, and
//! each is passed to its waiter. So sending and waiting are separate: a batch is sent whole, then
//! awaited.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::{Client, StatusCode, Subscriber};
use futures::{FutureExt, StreamExt};
use millrace_schemas::limits;
use serde::Deserialize;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::message::to_headers;
use super::violation::{Violation, Violations};
use crate::port::{FULL, Message, QueueError};

/// Header by which the server detects duplicates.
pub(super) const MESSAGE_ID: &str = "Nats-Msg-Id";
/// Header: the revision that a key must have.
pub(super) const EXPECTED_SUBJECT_SEQUENCE: &str = "Nats-Expected-Last-Subject-Sequence";

/// The server's code for a message that the stream's own limits keep out.
const STORE_FAILED: u64 = 10_077;
/// The server's code for a message whose id it is storing right now: in a cluster whose followers are slow, the first
/// send of this very message. Sent again it is a duplicate, answered with the first one's position.
const ID_IN_PROCESS: u64 = 10_158;
/// The server's code for a key of which another write is on its way to the replicas of a cluster. Whether that one will
/// be stored is not known yet, so it is no conflict: an earlier write of the same caller may be the one.
const KEY_IN_PROCESS: u64 = 10_164;
/// The server's codes for no room left, in its files and in its memory.
const NO_ROOM: [u64; 2] = [10_047, 10_028];
/// The server's code for a key of another revision than expected.
const WRONG_LAST_SEQUENCE: u64 = 10_071;
const TIMEOUT: Duration = Duration::from_millis(limits::REQUEST_TIMEOUT_MS);
/// How often the waiters are checked for timeouts.
const SWEEP: Duration = Duration::from_secs(1);

/// The server's result for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    /// It is stored there; or it was before, by its id.
    At { seq: u64, duplicate: bool },
    /// Its subject holds as many messages as it may.
    SubjectTaken,
    /// Its subject's last message is another than expected.
    WrongSequence,
}

type Answer = Result<Store, Failure>;

/// A failure without its operation, which only the caller knows.
#[derive(Debug)]
enum Failure {
    Unavailable(String),
    Refused(String),
}

impl Failure {
    fn of(self, action: &'static str) -> QueueError {
        match self {
            Self::Unavailable(reason) => QueueError::Unavailable { action, reason },
            Self::Refused(reason) => QueueError::Refused { action, reason },
        }
    }
}

/// Sends messages and returns their results.
pub(super) struct Publisher {
    client: Client,
    /// Reply subjects are this and a number.
    prefix: String,
    next: AtomicU64,
    waiting: Arc<Waiting>,
}

#[derive(Default)]
struct Waiting {
    answers: Mutex<HashMap<u64, Waiter>>,
}

/// A waiter for an acknowledgement.
struct Waiter {
    since: Instant,
    /// The subject of the message.
    subject: String,
    sender: oneshot::Sender<Answer>,
}

/// A message on its way.
pub(super) struct Sent {
    answer: oneshot::Receiver<Answer>,
}

impl Sent {
    /// Waits until the server answered.
    pub(super) async fn wait(self, action: &'static str) -> Result<Store, QueueError> {
        let lost = |_| Failure::Unavailable("the connection is closed".into());
        self.answer.await.map_err(lost).flatten().map_err(|failure| failure.of(action))
    }
}

impl Publisher {
    pub(super) async fn start(
        client: Client,
        epoch: watch::Receiver<u64>,
        violations: Violations,
    ) -> Result<Self, QueueError> {
        let prefix = format!("{}.", client.new_inbox());
        let subscriber = client.subscribe(format!("{prefix}*")).await.map_err(|e| {
            QueueError::Unavailable { action: "subscribe to acknowledgements", reason: e.to_string() }
        })?;
        let waiting = Arc::new(Waiting::default());
        tokio::spawn(receive(subscriber, prefix.len(), waiting.clone(), epoch, violations));
        Ok(Self { client, prefix, next: AtomicU64::new(0), waiting })
    }

    /// Writes the message to the connection, with `more` headers.
    pub(super) async fn send(
        &self,
        message: Message,
        more: &[(&'static str, String)],
    ) -> Result<Sent, QueueError> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        let waiter = Waiter { since: Instant::now(), subject: message.subject.clone(), sender };
        self.waiting.answers().insert(id, waiter);
        let reply = format!("{}{id}", self.prefix);
        let headers = to_headers(message.headers.iter().chain(more));
        let sent = match headers {
            Some(headers) => {
                let (subject, payload) = (message.subject, message.payload);
                self.client.publish_with_reply_and_headers(subject, reply, headers, payload).await
            }
            None => self.client.publish_with_reply(message.subject, reply, message.payload).await,
        };
        match sent {
            Ok(()) => Ok(Sent { answer }),
            Err(e) => {
                self.waiting.answers().remove(&id);
                Err(QueueError::Refused { action: "send a message", reason: e.to_string() })
            }
        }
    }
}

impl Waiting {
    fn answers(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Waiter>> {
        self.answers.lock().expect("no code panics while it holds the waiting")
    }

    /// Fails those that were sent before `until`.
    fn fail(&self, until: Instant, reason: &str) {
        self.fail_those(|waiter| waiter.since <= until, || Failure::Unavailable(reason.to_owned()));
    }

    fn fail_those(&self, which: impl Fn(&Waiter) -> bool, failure: impl Fn() -> Failure) {
        for (_, waiter) in self.answers().extract_if(|_, waiter| which(waiter)) {
            // The waiter may be gone.
            let _ = waiter.sender.send(Err(failure()));
        }
    }
}

/// Passes each acknowledgement to its waiter.
///
/// Consumes the acknowledgements and waits for the server. A lost connection fails all waiters:
/// their messages may be stored or not, and sending them again is harmless. A message that the
/// server forbids fails at once, and for good. Ends with the client.
async fn receive(
    mut subscriber: Subscriber,
    prefix: usize,
    waiting: Arc<Waiting>,
    mut epoch: watch::Receiver<u64>,
    violations: Violations,
) {
    let mut heard = violations.listen();
    let mut sweep = tokio::time::interval(SWEEP);
    loop {
        tokio::select! {
            biased;
            message = subscriber.next() => {
                let Some(message) = message else { break };
                waiting.tell(prefix, &message);
                // One wake for all that arrived together.
                while let Some(Some(message)) = subscriber.next().now_or_never() {
                    waiting.tell(prefix, &message);
                }
            }
            changed = epoch.changed() => {
                if changed.is_err() {
                    break;
                }
                waiting.fail(Instant::now(), "the connection was lost");
            }
            Ok(Violation { publish: true, subject }) = heard.recv() => {
                let forbidden = || Failure::Refused(violations.reason(&subject));
                waiting.fail_those(|waiter| waiter.subject == subject, forbidden);
            }
            now = sweep.tick() => {
                if let Some(until) = now.checked_sub(TIMEOUT) {
                    waiting.fail(until, "the server did not answer in time");
                }
            }
        }
    }
    waiting.fail(Instant::now(), "the connection is closed");
}

impl Waiting {
    fn tell(&self, prefix: usize, message: &async_nats::Message) {
        let id = message.subject.get(prefix..).and_then(|id| id.parse().ok());
        let Some(id) = id else { return };
        let waiting = self.answers().remove(&id);
        if let Some(waiter) = waiting {
            let _ = waiter.sender.send(read(message));
        }
    }
}

#[derive(Deserialize)]
struct Ack {
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    error: Option<AckError>,
}

#[derive(Deserialize)]
struct AckError {
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

fn read(message: &async_nats::Message) -> Answer {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Err(Failure::Unavailable(format!("no stream takes subject={}", message.subject)));
    }
    let ack: Ack = serde_json::from_slice(&message.payload)
        .map_err(|e| Failure::Refused(format!("the answer is no acknowledgement: {e}")))?;
    match ack.error {
        None => Ok(Store::At { seq: ack.seq, duplicate: ack.duplicate }),
        Some(e) if e.err_code == STORE_FAILED && e.description.contains("per subject") => {
            Ok(Store::SubjectTaken)
        }
        Some(e) if e.err_code == WRONG_LAST_SEQUENCE => Ok(Store::WrongSequence),
        Some(e) if e.is_transient() => Err(Failure::Unavailable(e.to_string())),
        Some(e) => Err(Failure::Refused(e.to_string())),
    }
}

impl AckError {
    /// Whether the same message may be stored when it is sent again. A full stream counts, because
    /// room may be freed: finished work must not be lost for lack of room.
    fn is_transient(&self) -> bool {
        [503, 429, 408].contains(&self.code)
            || [ID_IN_PROCESS, KEY_IN_PROCESS].contains(&self.err_code)
            || NO_ROOM.contains(&self.err_code)
    }
}

impl std::fmt::Display for AckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (err_code={})", self.description, self.err_code)?;
        if self.err_code == STORE_FAILED && self.description.contains("maximum bytes") {
            write!(f, "; {FULL}: raise its max_bytes, or make room")?;
        }
        if NO_ROOM.contains(&self.err_code) {
            write!(f, "; {FULL}: raise the server's limit of storage, or make room")?;
        }
        Ok(())
    }
}

/// The server gave an answer that this kind of message cannot get on streams as we make them.
pub(super) fn unexpected(action: &'static str) -> QueueError {
    QueueError::Refused { action, reason: "the stream is not set up as Millrace sets it up".into() }
}
