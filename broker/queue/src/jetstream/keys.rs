//! Keys: the buckets' streams, read and written as NATS key-value clients do.

use async_nats::{HeaderMap, StatusCode};
use bytes::Bytes;
use millrace_schemas::subjects::{COPY_HEADER, bucket_stream};

use super::api;
use super::connection::Connection;
use super::publish::{EXPECTED_SUBJECT_SEQUENCE, Store, unexpected};
use crate::port::{Expect, KeyValue, Message, QueueError, Written};

pub(super) fn subject(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{key}")
}

/// Whether a message takes its key away rather than giving it a value.
pub(super) fn is_deletion(headers: Option<&HeaderMap>) -> bool {
    headers.is_some_and(|headers| headers.get("KV-Operation").is_some_and(|op| op.as_str() != "PUT"))
}

/// Whether a stored message is what its writer said and no copy that the server was made to store: a copy has the
/// server's headers, which no writer of a value sends. `given` is how often the server itself put them on: once
/// where it gives out a copy of the message.
pub(super) fn is_original(headers: Option<&HeaderMap>, given: usize) -> bool {
    let count = |name: &str| headers.map_or(0, |headers| headers.get_all(name).count());
    [COPY_HEADER, "Nats-Sequence", "Nats-Subject"].into_iter().all(|name| count(name) == given)
}

/// The last message of a key.
struct Last {
    revision: u64,
    /// `None` where the key was taken away; empty where it holds a copy.
    value: Option<Bytes>,
}

impl Last {
    fn of(revision: u64, headers: Option<&HeaderMap>, given: usize, payload: Bytes) -> Self {
        let value = match is_original(headers, given) {
            true => (!is_deletion(headers)).then_some(payload),
            false => Some(Bytes::new()),
        };
        Self { revision, value }
    }

    fn named(self, key: &str) -> Option<KeyValue> {
        Some(KeyValue { key: key.to_owned(), value: self.value?, revision: self.revision })
    }
}

/// The last message of a key, from any replica.
async fn last(connection: &Connection, bucket: &str, key: &str) -> Result<Option<Last>, QueueError> {
    let unavailable = |reason: String| QueueError::Unavailable {
        action: "read a key",
        reason: format!("bucket={bucket} key={key}: {reason}"),
    };
    let path = format!("$JS.API.DIRECT.GET.{}.{}", bucket_stream(bucket), subject(bucket, key));
    let ask = || connection.client.request(path.clone(), Bytes::new());
    let answer = connection.answer_of_any("read a key", &path, ask).await?;
    let answer = answer.map_err(|e| unavailable(e.to_string()))?;
    if answer.status == Some(StatusCode::NOT_FOUND) {
        return Ok(None);
    }
    let headers = answer.headers.as_ref();
    // The server's own header comes last.
    let revision = headers.and_then(|headers| headers.get_all("Nats-Sequence").last()?.as_str().parse().ok());
    let revision =
        revision.ok_or_else(|| unavailable(format!("answered with status={:?}", answer.status)))?;
    Ok(Some(Last::of(revision, headers, 1, answer.payload)))
}

pub(super) async fn get(
    connection: &Connection,
    bucket: &str,
    key: &str,
) -> Result<Option<KeyValue>, QueueError> {
    Ok(last(connection, bucket, key).await?.and_then(|last| last.named(key)))
}

/// The last message of a key, from the leader of its stream.
async fn latest(connection: &Connection, bucket: &str, key: &str) -> Result<Option<Last>, QueueError> {
    let found = api::last_stored(connection, &bucket_stream(bucket), &subject(bucket, key)).await?;
    Ok(found.map(|found| Last::of(found.sequence, Some(&found.headers), 0, found.payload)))
}

pub(super) async fn get_latest(
    connection: &Connection,
    bucket: &str,
    key: &str,
) -> Result<Option<KeyValue>, QueueError> {
    Ok(latest(connection, bucket, key).await?.and_then(|last| last.named(key)))
}

pub(super) async fn set(
    connection: &Connection,
    bucket: &str,
    key: &str,
    value: Bytes,
    expect: Expect,
) -> Result<Written, QueueError> {
    let revision = match expect {
        Expect::Any => None,
        Expect::Revision(revision) => Some(revision),
        Expect::Absent => Some(match latest(connection, bucket, key).await? {
            None => 0,
            Some(Last { revision, value: None }) => revision,
            Some(Last { value: Some(_), .. }) => return Ok(Written::Conflict),
        }),
    };
    let expected = revision.map(|revision| (EXPECTED_SUBJECT_SEQUENCE, revision.to_string()));
    let message = Message { subject: subject(bucket, key), payload: value, headers: Vec::new() };
    let sent = connection.publisher.send(message, expected.as_slice()).await?;
    match sent.wait("write a key").await? {
        Store::At { seq, .. } => Ok(Written::At(seq)),
        Store::WrongSequence => Ok(Written::Conflict),
        Store::SubjectTaken => Err(unexpected("write a key")),
    }
}
