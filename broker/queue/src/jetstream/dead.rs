//! Tasks that nobody could do: those buried, and those that the server gave up delivering.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::stream::RawMessageErrorKind;
use async_trait::async_trait;
use millrace_schemas::Stage;
use millrace_schemas::limits::REQUEST_TIMEOUT_MS;
use millrace_schemas::subjects::{
    ADVISORY_OF_DELIVERIES, ADVISORY_STREAM, COPY_HEADER, DEAD_STREAM, REASON_HEADER, is_of_consumer,
    task_stream,
};
use serde::Deserialize;
use tokio::time::timeout;

use super::connection::Connection;
use super::message::{from_nats, known};
use super::ordered::Ordered;
use super::puller::JetStreamPuller;
use super::{api, topology};
use crate::port::{Delivery, Exhausted, ExhaustedTasks, Lease, LogEntry, Message, Puller, QueueError};

/// How long to wait for letters that the server has.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS);

/// The stored dead letters from a position on, oldest first.
pub(super) async fn letters(
    connection: &Arc<Connection>,
    from: u64,
    max: usize,
) -> Result<Vec<LogEntry>, QueueError> {
    let state = api::stream_state(connection, DEAD_STREAM).await?;
    let mut letters = Vec::new();
    if state.messages == 0 || from > state.last_seq {
        return Ok(letters);
    }
    let begin = DeliverPolicy::ByStartSequence { start_sequence: from.max(1) };
    let mut ordered = Ordered::new(connection.clone(), DEAD_STREAM.into(), begin);
    let wanted = max.min(usize::try_from(state.messages).unwrap_or(usize::MAX));
    while letters.len() < wanted {
        // A slow server must not count as one without letters: what they claim would be removed.
        let found = timeout(PATIENCE, ordered.next_stored(wanted - letters.len())).await;
        let found = found.map_err(|_| QueueError::Unavailable {
            action: "read dead letters",
            reason: format!("the server sent none for {PATIENCE:?}"),
        })??;
        // Some may be taken away meanwhile: then the last is not among those counted.
        if found.is_empty() {
            break;
        }
        for (place, message) in found {
            letters.push(LogEntry {
                seq: place.stream_seq,
                stored_ns: place.stored_ns,
                message: from_nats(message),
            });
        }
    }
    Ok(letters)
}

pub(super) async fn exhausted(connection: Arc<Connection>) -> Result<Box<dyn ExhaustedTasks>, QueueError> {
    let puller = JetStreamPuller::new(connection.clone(), ADVISORY_STREAM, topology::EXHAUSTED_CONSUMER);
    Ok(Box::new(JetStreamExhausted { connection, puller, notice: None }))
}

/// The server's notice that it will not deliver a message any more.
#[derive(Debug, Deserialize)]
struct Advisory {
    stream: String,
    consumer: String,
    stream_seq: u64,
    deliveries: u64,
}

impl Advisory {
    /// Reads a notice, if the server can have sent it. The server sends no copies, repeats stream
    /// and consumer in the subject, and names only tasks of our pools.
    fn read(notice: &Message) -> Option<Self> {
        if notice.header(COPY_HEADER).is_some() {
            return None;
        }
        let advisory: Self = serde_json::from_slice(&notice.payload).ok()?;
        let Self { stream, consumer, .. } = &advisory;
        let named = notice.subject == format!("{ADVISORY_OF_DELIVERIES}.{stream}.{consumer}");
        let ours = Stage::QUEUED.into_iter().any(|stage| task_stream(stage) == *stream);
        (named && ours).then_some(advisory)
    }

    /// Whether a task is its consumer's, which alone can have given it up.
    fn is_of(&self, task: &str) -> bool {
        is_of_consumer(task, &self.consumer)
    }
}

struct JetStreamExhausted {
    connection: Arc<Connection>,
    puller: JetStreamPuller,
    /// A notice pulled, whose task is being fetched.
    notice: Option<Delivery>,
}

#[async_trait]
impl ExhaustedTasks for JetStreamExhausted {
    async fn next(&mut self) -> Result<Exhausted, QueueError> {
        loop {
            if self.notice.is_none() {
                self.notice = self.puller.pull(1).await?.pop();
            }
            let Some(notice) = &self.notice else { continue };
            let found = read(&self.connection, notice).await?;
            let lease = notice.lease.clone();
            let Some((advisory, message)) = found else {
                // Not ours, or settled or purged meanwhile.
                lease.done().await?;
                self.notice = None;
                continue;
            };
            self.notice = None;
            let lease = ExhaustedLease {
                connection: self.connection.clone(),
                stream: advisory.stream,
                seq: advisory.stream_seq,
                notice: lease,
            };
            return Ok(Exhausted { message, seq: advisory.stream_seq, lease: Arc::new(lease) });
        }
    }
}

/// The task that a notice speaks of, with the reason as a header; `None` if there is none.
async fn read(connection: &Connection, notice: &Delivery) -> Result<Option<(Advisory, Message)>, QueueError> {
    let Some(advisory) = Advisory::read(&notice.message) else { return Ok(None) };
    let unavailable = |reason| QueueError::Unavailable { action: "fetch an exhausted task", reason };
    let stream = connection.context.get_stream_no_info(&advisory.stream).await;
    let stream = stream.map_err(|e| unavailable(e.to_string()))?;
    let path = format!("$JS.API.STREAM.MSG.GET.{}", advisory.stream);
    let found = stream.get_raw_message(advisory.stream_seq);
    let found = connection.answer("fetch an exhausted task", &path, found).await?;
    match found {
        Ok(found) if !advisory.is_of(&found.subject) => Ok(None),
        Ok(found) => {
            let mut headers = known(&found.headers);
            headers
                .push((REASON_HEADER, format!("delivered {} times without an outcome", advisory.deliveries)));
            let message = Message { subject: found.subject.into_string(), payload: found.payload, headers };
            Ok(Some((advisory, message)))
        }
        Err(e) if e.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(e) => Err(unavailable(e.to_string())),
    }
}

/// Removes an exhausted task from its stream, then the notice of it.
struct ExhaustedLease {
    connection: Arc<Connection>,
    stream: String,
    seq: u64,
    notice: Arc<dyn Lease>,
}

#[async_trait]
impl Lease for ExhaustedLease {
    async fn heartbeat(&self) -> Result<(), QueueError> {
        self.notice.heartbeat().await
    }

    async fn done(&self) -> Result<(), QueueError> {
        api::delete_message(&self.connection, &self.stream, self.seq).await?;
        self.notice.done().await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), QueueError> {
        self.notice.retry_after(delay).await
    }

    async fn poison(&self, _reason: &str) -> Result<(), QueueError> {
        self.done().await
    }
}
