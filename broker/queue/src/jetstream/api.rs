//! Requests to the server's JetStream API that the client library does not put this plainly.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::context::RequestErrorKind;
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, RawMessageErrorKind};
use millrace_schemas::blob::Sha;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::connection::Connection;
use super::report::StreamReport;
use crate::port::{LogRange, QueueError};

/// The field of the stream's metadata that has the log's id in hexadecimal digits: backups and restored copies keep it,
/// and the segments of the log go by it.
pub(super) const LOG_ID: &str = "millrace_log";

/// No message has this position (any more).
const NO_SUCH_MESSAGE: [u64; 2] = [10_043, 10_057];

#[derive(Debug, Deserialize)]
struct Purged {
    purged: u64,
}

#[derive(Debug, Deserialize)]
struct Done {}

#[derive(Debug, Deserialize)]
struct StreamInfo {
    /// When it was made, as the server writes it. A copy that a single server restores keeps it; one that a cluster
    /// restores is made at that moment.
    created: String,
    config: StreamConfig,
    state: StreamState,
    /// Absent for a single server.
    cluster: Option<Cluster>,
}

#[derive(Debug, Deserialize)]
struct StreamConfig {
    /// -1 is no bound.
    max_bytes: i64,
    num_replicas: u32,
    #[serde(default)]
    metadata: HashMap<String, String>,
}

#[derive(Debug, Deserialize)]
struct Cluster {
    /// Absent while none is chosen.
    leader: Option<String>,
    /// The other servers that hold a copy.
    #[serde(default)]
    replicas: Vec<Replica>,
}

#[derive(Debug, Deserialize)]
struct Replica {
    current: bool,
    #[serde(default)]
    offline: bool,
}

#[derive(Debug, Deserialize)]
struct ConsumerInfo {
    config: ConsumerConfig,
}

#[derive(Debug, Deserialize)]
struct ConsumerConfig {
    /// Nanoseconds.
    ack_wait: u64,
}

/// What a stream holds.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct StreamState {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) first_seq: u64,
    pub(super) last_seq: u64,
}

/// Why a request failed.
enum ApiError {
    /// The connection is lost, or we may not ask.
    Queue(QueueError),
    /// The server answered with this code and these words.
    Answered {
        code: usize,
        err_code: u64,
        reason: String,
    },
    Unanswered(String),
}

impl ApiError {
    fn of(self, action: &'static str) -> QueueError {
        match self {
            Self::Queue(error) => error,
            Self::Unanswered(reason) => QueueError::Unavailable { action, reason },
            Self::Answered { code: 408 | 429 | 503, reason, .. } => {
                QueueError::Unavailable { action, reason }
            }
            Self::Answered { reason, .. } => QueueError::Refused { action, reason },
        }
    }
}

async fn ask<T: DeserializeOwned>(
    connection: &Connection,
    action: &'static str,
    path: String,
    body: &impl Serialize,
) -> Result<T, ApiError> {
    let subject = format!("$JS.API.{path}");
    let answer = connection.answer(action, &subject, connection.context.request(path, body)).await;
    match answer.map_err(ApiError::Queue)? {
        Ok(Response::Ok(answer)) => Ok(answer),
        Ok(Response::Err { error }) => Err(ApiError::Answered {
            code: error.code(),
            err_code: error.error_code().0,
            reason: error.to_string(),
        }),
        Err(e) if e.kind() == RequestErrorKind::NoResponders => {
            Err(ApiError::Unanswered("JetStream does not answer; is it switched on?".into()))
        }
        Err(e) => Err(ApiError::Unanswered(e.to_string())),
    }
}

pub(super) async fn purge(connection: &Connection, stream: &str, filter: &str) -> Result<u64, QueueError> {
    let path = format!("STREAM.PURGE.{stream}");
    let (action, body) = ("purge tasks", json!({ "filter": filter }));
    let purged: Purged = ask(connection, action, path, &body).await.map_err(|e| e.of(action))?;
    Ok(purged.purged)
}

/// Removes all messages before `before` from a stream.
pub(super) async fn trim(connection: &Connection, stream: &str, before: u64) -> Result<(), QueueError> {
    // The server takes a purge without a position for one of everything.
    if before <= 1 {
        return Ok(());
    }
    let path = format!("STREAM.PURGE.{stream}");
    let (action, body) = ("trim the log", json!({ "seq": before }));
    ask::<Purged>(connection, action, path, &body).await.map(|_| ()).map_err(|e| e.of(action))
}

/// Which stream it is, and the positions that it holds.
pub(super) async fn stream_range(connection: &Connection, stream: &str) -> Result<LogRange, QueueError> {
    let StreamInfo { created, config, state, .. } = stream_info(connection, stream).await?;
    let id = config.metadata.get(LOG_ID).and_then(|id| u64::from_str_radix(id, 16).ok());
    let first = if state.messages == 0 { state.last_seq + 1 } else { state.first_seq };
    Ok(LogRange {
        id: id.unwrap_or_else(|| id_of(&created)),
        first,
        last: state.last_seq,
        bytes: state.bytes,
        max_bytes: u64::try_from(config.max_bytes).ok(),
    })
}

/// The id of a log whose stream has none in its [`LOG_ID`].
fn id_of(created: &str) -> u64 {
    let Sha([a, b, c, d, e, f, g, h, ..]) = Sha::of(created.as_bytes());
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

pub(super) async fn stream_state(connection: &Connection, stream: &str) -> Result<StreamState, QueueError> {
    Ok(stream_info(connection, stream).await?.state)
}

/// The name of the server that leads a stream in a cluster.
pub(super) async fn stream_leader(
    connection: &Connection,
    stream: &str,
) -> Result<Option<String>, QueueError> {
    Ok(stream_info(connection, stream).await?.cluster.and_then(|cluster| cluster.leader))
}

/// How full a stream is, and how many servers have all of it.
pub(super) async fn stream_report(connection: &Connection, stream: &str) -> Result<StreamReport, QueueError> {
    let StreamInfo { config, state, cluster, .. } = stream_info(connection, stream).await?;
    let current = cluster.map_or(1, |cluster| {
        let followers = cluster.replicas.iter().filter(|replica| replica.current && !replica.offline);
        u32::from(cluster.leader.is_some()) + followers.count() as u32
    });
    Ok(StreamReport {
        messages: state.messages,
        bytes: state.bytes,
        max_bytes: u64::try_from(config.max_bytes).ok(),
        copies: config.num_replicas,
        current,
    })
}

async fn stream_info(connection: &Connection, stream: &str) -> Result<StreamInfo, QueueError> {
    let path = format!("STREAM.INFO.{stream}");
    let action = "look at a stream";
    ask(connection, action, path, &json!({})).await.map_err(|e| e.of(action))
}

/// When the leader of a stream stored the message at a position, in nanoseconds of its clock;
/// `None` if the position is empty.
pub(super) async fn stored_ns(
    connection: &Connection,
    stream: &str,
    seq: u64,
) -> Result<Option<u64>, QueueError> {
    let action = "look at an entry of a stream";
    let unavailable = |reason| QueueError::Unavailable { action, reason };
    let path = format!("$JS.API.STREAM.MSG.GET.{stream}");
    let handle = connection.context.get_stream_no_info(stream).await;
    let handle = handle.map_err(|e| unavailable(e.to_string()))?;
    match connection.answer(action, &path, handle.get_raw_message(seq)).await? {
        Ok(found) => Ok(u64::try_from(found.time.unix_timestamp_nanos()).ok()),
        Err(e) if e.kind() == RawMessageErrorKind::NoMessageFound => Ok(None),
        Err(e) => Err(unavailable(e.to_string())),
    }
}

/// How long a delivery of a consumer may stay silent; `None` if there is no such consumer.
pub(super) async fn ack_wait(
    connection: &Connection,
    stream: &str,
    consumer: &str,
) -> Result<Option<Duration>, QueueError> {
    let path = format!("CONSUMER.INFO.{stream}.{consumer}");
    let action = "look at a pool";
    match ask::<ConsumerInfo>(connection, action, path, &json!({})).await {
        Ok(info) => Ok(Some(Duration::from_nanos(info.config.ack_wait))),
        Err(ApiError::Answered { code: 404, .. }) => Ok(None),
        Err(e) => Err(e.of(action)),
    }
}

/// Deletes a consumer; one that is not there is fine too.
pub(super) async fn delete_consumer(
    connection: &Connection,
    stream: &str,
    consumer: &str,
) -> Result<(), QueueError> {
    let path = format!("CONSUMER.DELETE.{stream}.{consumer}");
    let action = "remove a pool";
    match ask::<Done>(connection, action, path, &json!({})).await {
        Ok(Done {}) | Err(ApiError::Answered { code: 404, .. }) => Ok(()),
        Err(e) => Err(e.of(action)),
    }
}

/// The last message on a subject, asked of the stream's leader; `None` if there is none.
pub(super) async fn last_stored(
    connection: &Connection,
    stream: &str,
    subject: &str,
) -> Result<Option<StreamMessage>, QueueError> {
    let action = "read a key";
    let unavailable = |reason| QueueError::Unavailable { action, reason };
    let path = format!("$JS.API.STREAM.MSG.GET.{stream}");
    let handle = connection.context.get_stream_no_info(stream).await;
    let handle = handle.map_err(|e| unavailable(e.to_string()))?;
    match connection.answer(action, &path, handle.get_last_raw_message_by_subject(subject)).await? {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(e) => Err(unavailable(format!("subject={subject}: {e}"))),
    }
}

/// Deletes a message; one that is not there is fine too.
pub(super) async fn delete_message(
    connection: &Connection,
    stream: &str,
    seq: u64,
) -> Result<(), QueueError> {
    let path = format!("STREAM.MSG.DELETE.{stream}");
    let action = "delete a message";
    match ask::<Done>(connection, action, path, &json!({ "seq": seq, "no_erase": true })).await {
        Ok(Done {}) => Ok(()),
        Err(ApiError::Answered { err_code, .. }) if NO_SUCH_MESSAGE.contains(&err_code) => Ok(()),
        Err(e) => Err(e.of(action)),
    }
}
