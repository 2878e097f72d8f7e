//! The entries of one run in a segment: columns, compressed, and an index beside them.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::limits::{MAX_CLAIM_BYTES, MAX_SEGMENT_RAW_BYTES};
use millrace_schemas::log_segment::{Claim, RolloutEntries, SegmentEntries, SegmentIndex, SegmentPart};
use millrace_schemas::subjects::{self, ALL_RUNS, CLAIM_HEADER};
use millrace_schemas::{BlobRef, Event, OutcomeBody, RolloutId, RunId};

use super::super::reach::rows_of;
use super::super::{Broker, BrokerError, parse_claim};
use super::invalid;
use crate::port::{LogEntry, Message};
use millrace_objects::ObjectError;

/// zstd's own default: what is stored once and read seldom, quickly.
const COMPRESSION: i32 = 3;
/// Bytes above which compression leaves the async threads.
const INLINE_BYTES: u64 = 256 * 1024;
/// Claimed payloads that are fetched at once for the index.
const FETCHES_IN_FLIGHT: usize = 8;

impl Broker {
    pub(super) async fn write_parts(
        &self,
        entries: &[LogEntry],
        runs: &BTreeSet<RunId>,
    ) -> Result<Vec<SegmentPart>, BrokerError> {
        let mut by_run: BTreeMap<RunId, Vec<&LogEntry>> = BTreeMap::new();
        for entry in entries {
            by_run.entry(run_of(entry, runs)).or_default().push(entry);
        }
        let mut parts = Vec::with_capacity(by_run.len());
        for (run, entries) in by_run {
            parts.push(self.write_part(run, &entries).await?);
        }
        Ok(parts)
    }

    async fn write_part(&self, run: RunId, entries: &[&LogEntry]) -> Result<SegmentPart, BrokerError> {
        let index = self.objects.put_blob(&run, encode(&self.index(entries).await?)).await?;
        let raw = encode(&columns(entries));
        let raw_bytes = raw.len() as u64;
        let data = heavy(raw_bytes, move || zstd::bulk::compress(&raw, COMPRESSION)).await;
        let data = data.map_err(|e| invalid(format!("it cannot be compressed: {e}")))?;
        let data = self.objects.put_blob(&run, data.into()).await?;
        Ok(SegmentPart { run, entries: entries.len() as u64, raw_bytes, data, index })
    }

    pub(super) async fn read_part(&self, part: &SegmentPart) -> Result<Vec<LogEntry>, BrokerError> {
        let wrong = |reason: String| {
            invalid(format!("the part of run={} sha256={} is damaged: {reason}", part.run, part.data.sha256))
        };
        if part.raw_bytes > MAX_SEGMENT_RAW_BYTES {
            return Err(wrong(format!("it says bytes={}, above {MAX_SEGMENT_RAW_BYTES}", part.raw_bytes)));
        }
        let data = self.objects.get_blob(&part.run, &part.data).await?;
        let raw_bytes = part.raw_bytes;
        let read = heavy(raw_bytes, move || -> Result<SegmentEntries, String> {
            let raw = zstd::bulk::decompress(&data, raw_bytes as usize).map_err(|e| e.to_string())?;
            decode("log segment", &raw).map_err(|e| e.to_string())
        });
        let columns = read.await.map_err(wrong)?;
        if columns.entries() != Some(part.entries as usize) {
            return Err(wrong(format!("it does not hold entries={}", part.entries)));
        }
        Ok(to_entries(columns))
    }

    /// The index of a part.
    ///
    /// # Errors
    /// The object store fails, or holds something else.
    pub async fn read_index(&self, part: &SegmentPart) -> Result<SegmentIndex, BrokerError> {
        let content = self.objects.get_blob(&part.run, &part.index).await?;
        decode("index of a log segment", &content).map_err(|e| invalid(e.to_string()))
    }

    async fn index(&self, entries: &[&LogEntry]) -> Result<SegmentIndex, BrokerError> {
        let events = entries.iter().map(|entry| self.event_for_index(entry));
        let events: Vec<_> = events.collect();
        let events = futures::stream::iter(events).buffered(FETCHES_IN_FLIGHT);
        let events: Vec<Option<Event>> = events.try_collect().await?;
        let (mut index, mut rollouts) = (SegmentIndex::default(), BTreeMap::<RolloutId, Vec<u64>>::new());
        for (entry, event) in entries.iter().zip(events) {
            let run = named(entry);
            let payload = run.clone().zip(claim_of(entry));
            index.claims.extend(payload.map(|(run, blob)| Claim { run, blob }));
            let Some(event) = event else { continue };
            index.claims.extend(run.iter().flat_map(|run| rows_of(run, &event)));
            let (rollout, versions) = concerns(&event);
            if let Some(rollout) = rollout {
                rollouts.entry(rollout).or_default().push(entry.seq);
            }
            for version in versions {
                index.versions.entry(version).or_default().push(entry.seq);
            }
        }
        index.claims.sort_unstable();
        index.claims.dedup();
        let entries = |(rollout, seq)| RolloutEntries { rollout, seq };
        index.rollouts = rollouts.into_iter().map(entries).collect();
        Ok(index)
    }

    /// The event of an entry, if it is one. What is lost for good is in no index; the entry itself is kept as it is.
    pub(in super::super) async fn event_for_index(
        &self,
        entry: &LogEntry,
    ) -> Result<Option<Event>, ObjectError> {
        // The brief form has all that an index needs.
        let Some(blob) = claim_of(entry).filter(|_| entry.message.payload.is_empty()) else {
            return Ok(Event::from_bytes(&entry.message.payload).ok());
        };
        let Some(run) = named(entry).filter(|_| blob.bytes <= MAX_CLAIM_BYTES) else { return Ok(None) };
        match self.objects.get_blob(&run, &blob).await {
            Ok(content) => Ok(Event::from_bytes(&content).ok()),
            Err(ObjectError::NotFound { .. } | ObjectError::Corrupt { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// The blob that holds an entry's payload.
pub(in super::super) fn claim_of(entry: &LogEntry) -> Option<BlobRef> {
    entry.message.header(CLAIM_HEADER).and_then(|claim| parse_claim(claim).ok())
}

/// The rollout of an event, and the versions under which it is looked for.
fn concerns(event: &Event) -> (Option<RolloutId>, BTreeSet<millrace_schemas::PolicyVersion>) {
    use millrace_schemas::{PolicyVersion, TaskKey};
    if let Event::Adopted(adopted) = event {
        return (None, BTreeSet::from([adopted.version]));
    }
    let Some(key) = event.task() else { return (None, BTreeSet::new()) };
    let versions = match (key, event) {
        (TaskKey::TrainShard { makes, .. }, _) => BTreeSet::from([PolicyVersion(makes)]),
        (TaskKey::PublishWeights { version, .. }, _) => BTreeSet::from([PolicyVersion(version)]),
        (_, Event::Outcome(outcome)) => match &outcome.body {
            OutcomeBody::Generate(done) => done.segments.iter().map(|segment| segment.version).collect(),
            OutcomeBody::TurnBrief(brief) => brief.segments.iter().map(|segment| segment.version).collect(),
            OutcomeBody::EnvStep(_)
            | OutcomeBody::StepBrief(_)
            | OutcomeBody::Reward(_)
            | OutcomeBody::TrainShard(_)
            | OutcomeBody::Void(_)
            | OutcomeBody::Lost(_)
            | OutcomeBody::PublishWeights(_)
            | OutcomeBody::Returned(_) => BTreeSet::new(),
        },
        (_, _) => BTreeSet::new(),
    };
    (key.rollout(), versions)
}

/// The run that an entry's subject names.
pub(in super::super) fn named(entry: &LogEntry) -> Option<RunId> {
    subjects::run_of_log(&entry.message.subject)?.parse().ok()
}

/// Whose part an entry belongs to.
fn run_of(entry: &LogEntry, runs: &BTreeSet<RunId>) -> RunId {
    let known = named(entry).filter(|run| runs.contains(run));
    known.unwrap_or_else(|| ALL_RUNS.parse().expect("the word is a run's name"))
}

fn columns(entries: &[&LogEntry]) -> SegmentEntries {
    let mut columns = SegmentEntries::default();
    for entry in entries {
        let Message { subject, payload, headers } = &entry.message;
        columns.seq.push(entry.seq);
        columns.stored_ns.push(entry.stored_ns);
        columns.subject.push(subject.clone());
        columns
            .headers
            .push(headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect());
        columns.payload.push(payload.clone());
    }
    columns
}

fn to_entries(columns: SegmentEntries) -> Vec<LogEntry> {
    let SegmentEntries { seq, stored_ns, subject, headers, payload } = columns;
    let places = seq.into_iter().zip(stored_ns);
    let messages = subject.into_iter().zip(headers).zip(payload);
    let mut entries = Vec::new();
    for ((seq, stored_ns), ((subject, headers), payload)) in places.zip(messages) {
        let known = |(name, value): (String, String)| Some((subjects::header(&name)?, value));
        let headers = headers.into_iter().filter_map(known).collect();
        entries.push(LogEntry { seq, stored_ns, message: Message { subject, payload, headers } });
    }
    entries
}

/// Does what takes long off the async threads.
async fn heavy<T: Send + 'static>(bytes: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= INLINE_BYTES {
        return work();
    }
    tokio::task::spawn_blocking(work).await.expect("compression does not panic")
}
