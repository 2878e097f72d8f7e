//! Keys: the buckets' streams, read and written as NATS key-value clients do.

use async_nats::{HeaderMap, StatusCode};
use bytes::Bytes;
use millrace_schemas::subjects::bucket_stream;

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

/// The last message of a key: its revision, and its value unless it is deleted.
async fn last(
    connection: &Connection,
    bucket: &str,
    key: &str,
) -> Result<Option<(u64, Option<Bytes>)>, QueueError> {
    let unavailable = |reason: String| QueueError::Unavailable {
        action: "read a key",
        reason: format!("bucket={bucket} key={key}: {reason}"),
    };
    let path = format!("$JS.API.DIRECT.GET.{}.{}", bucket_stream(bucket), subject(bucket, key));
    let asked = connection.client.request(path.clone(), Bytes::new());
    let answer = connection.answer("read a key", &path, asked).await?;
    let answer = answer.map_err(|e| unavailable(e.to_string()))?;
    if answer.status == Some(StatusCode::NOT_FOUND) {
        return Ok(None);
    }
    let headers = answer.headers.as_ref();
    let revision = headers.and_then(|headers| headers.get("Nats-Sequence")?.as_str().parse().ok());
    let revision =
        revision.ok_or_else(|| unavailable(format!("answered with status={:?}", answer.status)))?;
    Ok(Some((revision, (!is_deletion(headers)).then_some(answer.payload))))
}

pub(super) async fn get(
    connection: &Connection,
    bucket: &str,
    key: &str,
) -> Result<Option<KeyValue>, QueueError> {
    let found = last(connection, bucket, key).await?;
    Ok(found.and_then(|(revision, value)| Some(KeyValue { key: key.to_owned(), value: value?, revision })))
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
        Expect::Absent => Some(match last(connection, bucket, key).await? {
            None => 0,
            Some((revision, None)) => revision,
            Some((_, Some(_))) => return Ok(Written::Conflict),
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
