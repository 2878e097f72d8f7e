//! Keys: the buckets' streams, read and written as NATS key-value clients do.

use std::collections::VecDeque;
use std::sync::Arc;

use async_nats::{HeaderMap, StatusCode};
use async_trait::async_trait;
use bytes::Bytes;

use super::connection::Connection;
use super::ordered::Ordered;
use super::publish::{EXPECTED_SUBJECT_SEQUENCE, Store, unexpected};
use crate::port::{Expect, KeyValue, KeyWatcher, Message, QueueError, Written};

fn stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

fn subject(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{key}")
}

/// Whether a message takes its key away rather than giving it a value.
fn is_deletion(headers: Option<&HeaderMap>) -> bool {
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
    let path = format!("$JS.API.DIRECT.GET.{}.{}", stream(bucket), subject(bucket, key));
    let answer = connection.answer(connection.client.request(path, Bytes::new())).await;
    let answer = answer.map_err(unavailable)?.map_err(|e| unavailable(e.to_string()))?;
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

/// Watches a bucket.
pub(super) struct JetStreamWatcher {
    ordered: Ordered,
    prefix: String,
    ready: VecDeque<KeyValue>,
}

impl JetStreamWatcher {
    pub(super) fn new(connection: Arc<Connection>, bucket: &str) -> Self {
        let ordered = Ordered::latest(connection, stream(bucket), subject(bucket, ">"));
        Self { ordered, prefix: subject(bucket, ""), ready: VecDeque::new() }
    }
}

#[async_trait]
impl KeyWatcher for JetStreamWatcher {
    async fn next(&mut self) -> Result<KeyValue, QueueError> {
        loop {
            if let Some(value) = self.ready.pop_front() {
                return Ok(value);
            }
            for (place, message) in self.ordered.next(usize::MAX).await? {
                let deleted = is_deletion(message.headers.as_ref());
                if let Some(key) = message.subject.strip_prefix(self.prefix.as_str())
                    && !deleted
                {
                    let (key, value) = (key.to_owned(), message.payload);
                    self.ready.push_back(KeyValue { key, value, revision: place.stream_seq });
                }
            }
        }
    }
}
