//! Entries of a stream by position, from any replica.

use async_nats::StatusCode;
use async_nats::jetstream::stream::DirectGetErrorKind;
use futures::{StreamExt, TryStreamExt};
use millrace_schemas::limits::FETCHES_IN_FLIGHT;
use millrace_schemas::subjects::COPY_HEADER;

use super::connection::Connection;
use super::message::known;
use crate::port::{LogEntry, Message, QueueError};

/// The entries at these positions, in the same order.
pub(super) async fn at(
    connection: &Connection,
    stream: &str,
    seqs: &[u64],
) -> Result<Vec<Option<LogEntry>>, QueueError> {
    let asked = futures::stream::iter(seqs.iter().copied());
    asked.map(|seq| one(connection, stream, seq)).buffered(FETCHES_IN_FLIGHT).try_collect().await
}

async fn one(connection: &Connection, stream: &str, seq: u64) -> Result<Option<LogEntry>, QueueError> {
    let action = "read an entry of the log";
    let unavailable =
        |reason: String| QueueError::Unavailable { action, reason: format!("seq={seq}: {reason}") };
    let path = format!("$JS.API.DIRECT.GET.{stream}");
    let handle = connection.context.get_stream_no_info(stream).await;
    let handle = handle.map_err(|e| unavailable(e.to_string()))?;
    let found = match connection.answer_of_any(action, &path, || handle.direct_get(seq)).await? {
        Ok(found) => found,
        Err(e) => {
            return match e.kind() {
                DirectGetErrorKind::NotFound
                | DirectGetErrorKind::ErrorResponse(StatusCode::NOT_FOUND, _) => Ok(None),
                _ => Err(unavailable(e.to_string())),
            };
        }
    };
    let mut headers = known(&found.headers);
    // The answer is a copy itself. An entry that was one when it was stored has the mark twice.
    if found.headers.get_all(COPY_HEADER).count() < 2 {
        headers.retain(|(name, _)| *name != COPY_HEADER);
    }
    let stored_ns = u64::try_from(found.time.unix_timestamp_nanos()).unwrap_or_default();
    let message = Message { subject: found.subject.into_string(), payload: found.payload, headers };
    Ok(Some(LogEntry { seq: found.sequence, stored_ns, message }))
}
