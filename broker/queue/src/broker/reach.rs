//! The objects that the log, its segments and the dead letters refer to. Garbage collection keeps
//! them.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_schemas::blob::paths::{self, LOG, ObjectKind};
use millrace_schemas::limits::REQUEST_TIMEOUT_MS;
use millrace_schemas::log_segment::Claim;
use millrace_schemas::subjects::{CLAIM_HEADER, SUBJECT_HEADER};
use millrace_schemas::{Event, RunId, subjects};
use tokio::time::timeout;

use super::segments::{claim_of, named};
use super::{Broker, BrokerError, parse_claim};
use crate::port::LogEntry;

/// Entries of the log, or dead letters, that are asked for at once.
const READ_AT_ONCE: usize = 1_024;
/// For entries that the log holds to come; they may be trimmed meanwhile.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS);

impl Broker {
    /// The blobs that log, segments and dead letters name: payloads, rows that runs ask, parts of segments. The log comes
    /// before its segments, so that what is trimmed meanwhile is seen once at least.
    ///
    /// # Errors
    /// The queue or the object store fails, or a segment holds something else.
    pub async fn claimed(&self) -> Result<BTreeSet<Claim>, BrokerError> {
        let mut claims = self.claimed_by_log().await?;
        for path in self.objects.list(LOG).await? {
            let Some(ObjectKind::Segment { log, branch, first }) = paths::parse(&path) else { continue };
            let Some(segment) = self.segment_at(log, branch, first).await? else { continue };
            for part in segment.parts {
                claims.extend(self.read_index(&part).await?.claims);
                claims.extend([part.data, part.index].map(|blob| Claim { run: part.run.clone(), blob }));
            }
        }
        claims.extend(self.claimed_by_letters().await?);
        Ok(claims)
    }

    async fn claimed_by_log(&self) -> Result<BTreeSet<Claim>, BrokerError> {
        let mut claims = BTreeSet::new();
        let range = self.queue.log_range().await?;
        let (mut next, mut reader) = (range.first.max(1), self.queue.read_log(range.first.max(1)).await?);
        while next <= range.last {
            let Ok(entries) = timeout(PATIENCE, reader.next(READ_AT_ONCE)).await else {
                // What was awaited has been trimmed.
                if self.queue.log_range().await?.first > range.last {
                    break;
                }
                continue;
            };
            for entry in entries? {
                next = entry.seq + 1;
                claims.extend(self.claims_of(&entry).await?);
            }
        }
        Ok(claims)
    }

    /// The blobs that an entry of the log names.
    pub(super) async fn claims_of(&self, entry: &LogEntry) -> Result<Vec<Claim>, BrokerError> {
        let Some(run) = named(entry) else { return Ok(vec![]) };
        let payload = claim_of(entry).map(|blob| Claim { run: run.clone(), blob });
        let mut claims: Vec<Claim> = payload.into_iter().collect();
        if subjects::is_submit(&entry.message.subject)
            && let Some(event) = self.event_for_index(entry).await?
        {
            claims.extend(rows_of(&run, &event));
        }
        Ok(claims)
    }

    async fn claimed_by_letters(&self) -> Result<Vec<Claim>, BrokerError> {
        let (mut claims, mut from) = (Vec::new(), 1);
        loop {
            let letters = self.queue.dead_letters(from, READ_AT_ONCE).await?;
            let Some(last) = letters.last() else { return Ok(claims) };
            from = last.seq + 1;
            for letter in &letters {
                let header = |name| letter.message.header(name);
                let task = header(SUBJECT_HEADER).and_then(|subject| subjects::parse_task(subject).ok());
                let blob = header(CLAIM_HEADER).and_then(|claim| parse_claim(claim).ok());
                claims.extend(task.zip(blob).map(|(task, blob)| Claim { run: task.run, blob }));
            }
        }
    }
}

/// The rows that a run asks, if the event hands such a run in.
pub(super) fn rows_of(run: &RunId, event: &Event) -> Vec<Claim> {
    let Event::Submitted(spec) = event else { return vec![] };
    let datasets = spec.parts().filter_map(|part| part.environment.dataset()?.content);
    datasets.map(|content| Claim { run: run.clone(), blob: content.blob }).collect()
}
