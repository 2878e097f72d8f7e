//! Log segments: trimmed entries of the log are in the object store, and are read back as the log
//! is.
//!
//! A trim has four steps: parts, manifest, proof, trim. The manifest is created once, under the
//! position of its first entry, which is the first entry of the log. Where several processes trim
//! at once, one of them creates the manifest and the others use it. The log is trimmed only up to a
//! segment that reads back equal to the log's own entries. So a process that stops between two
//! steps leaves either the log as it was, or a segment beside it. The next process proves that
//! segment and trims by it. One that holds something else is of a lost future (`chain.rs`) and is passed by.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use millrace_schemas::RunId;
use millrace_schemas::blob::paths::{self, ObjectKind};
use millrace_schemas::limits::SEGMENT_BYTES;
use millrace_schemas::log_segment::LogSegment;

use super::{Broker, BrokerError};
use crate::port::{LogEntry, QueueError};
use millrace_objects::ObjectError;

mod chain;
mod part;

pub use chain::Chain;
pub(super) use part::{claim_of, named};

/// Entries asked of the log at once.
const READ_AT_ONCE: usize = 1_024;

/// How far the log may be trimmed.
#[derive(Clone, Copy)]
pub struct TrimRule<'a> {
    /// Nothing from this position on.
    pub before: u64,
    /// Nothing stored later than this, in nanoseconds of the server's clock: the newest entries may yet be lost with a
    /// machine, and their positions given out again.
    pub stored_before_ns: u64,
    /// Runs whose entries become parts of their own; those of all others are with the events of all runs.
    pub runs: &'a BTreeSet<RunId>,
    /// Entries of a segment. The log keeps what does not fill one.
    pub entries: usize,
    /// Whether this process may still act; asked last before the log is trimmed.
    pub may_act: &'a (dyn Fn() -> bool + Sync),
}

/// What stands where the log's next segment belongs.
enum Standing {
    /// Nothing that holds the log's entries. The next one is of this branch.
    None { branch: u32 },
    /// A segment whose entries the rule does not let go yet.
    Begun,
    /// A segment that is proven.
    Same(LogSegment),
}

impl Broker {
    /// Moves the oldest entries of the log into a segment, if the rule permits enough of them.
    /// Returns the segment.
    ///
    /// # Errors
    /// The queue or the object store fails, or a segment cannot be read back. The log keeps all
    /// entries that are in no proven segment.
    pub async fn trim_log(&self, rule: TrimRule<'_>) -> Result<Option<LogSegment>, BrokerError> {
        let log = self.queue.log_range().await?.id;
        // Asked for before the range is: the log had been trimmed by each of these then, but by the newest.
        let chain = self.segments(log).await?;
        let range = self.queue.log_range().await?;
        let before = rule.before.min(range.last + 1);
        if range.id != log || range.first >= before {
            return Ok(None);
        }
        let trimmed_to = self.trimmed_to.load(Ordering::Relaxed);
        if range.first < trimmed_to {
            // A server that does not know that it no longer leads the log, or a log that was restored under its writer.
            let first = range.first;
            let reason =
                format!("it begins at seq={first}, though this process trimmed it to seq={trimmed_to}");
            return Err(BrokerError::Invalid { action: "trim the log", reason });
        }
        let rule = TrimRule { before, ..rule };
        let segment = match self.standing(log, &chain, range.first, &rule).await? {
            Standing::Begun => return Ok(None),
            Standing::Same(segment) => segment,
            Standing::None { branch } => {
                let (entries, full) = self.oldest(range.first, &rule, SEGMENT_BYTES).await?;
                // A branch takes positions from the earlier ones, so that another leader may have trimmed nothing since.
                if !full || (branch > chain.newest() && !(rule.may_act)()) {
                    return Ok(None);
                }
                let segment = self.write_segment(log, branch, &entries, rule.runs).await?;
                self.prove(&segment, &entries).await?;
                segment
            }
        };
        if !(rule.may_act)() {
            return Ok(None);
        }
        self.queue.trim_log(segment.last + 1).await?;
        self.trimmed_to.fetch_max(segment.last + 1, Ordering::Relaxed);
        Ok(Some(segment))
    }

    /// The segment that begins where the log does.
    async fn standing(
        &self,
        log: u64,
        chain: &Chain,
        first: u64,
        rule: &TrimRule<'_>,
    ) -> Result<Standing, BrokerError> {
        let lost = Standing::None { branch: chain.newest() + 1 };
        if chain.is_beyond(first) {
            tracing::warn!(
                seq = first,
                "the log went back behind its segments: those from here on are set aside"
            );
            return Ok(lost);
        }
        let Some(branch) = chain.at(first) else { return Ok(Standing::None { branch: chain.newest() }) };
        let Some(segment) = self.segment_at(log, branch, first).await? else {
            return Ok(Standing::None { branch });
        };
        let before = rule.before.min(segment.last + 1);
        let all = TrimRule { before, entries: usize::MAX, ..*rule };
        let (entries, _) = self.oldest(first, &all, u64::MAX).await?;
        let stored = self.read_segment(&segment).await?;
        if !stored.starts_with(&entries) {
            tracing::warn!(seq = first, "a segment holds other entries than the log does: it is set aside");
            return Ok(lost);
        }
        match entries.len() == stored.len() {
            true => Ok(Standing::Same(segment)),
            false => Ok(Standing::Begun),
        }
    }

    /// The oldest entries that the rule lets go, and whether they fill a segment.
    async fn oldest(
        &self,
        first: u64,
        rule: &TrimRule<'_>,
        most_bytes: u64,
    ) -> Result<(Vec<LogEntry>, bool), BrokerError> {
        let (mut entries, mut bytes): (Vec<LogEntry>, u64) = (Vec::new(), 0);
        let mut reader = self.queue.read_log(first).await?;
        while first + (entries.len() as u64) < rule.before {
            for entry in reader.next(READ_AT_ONCE).await? {
                let next = first + entries.len() as u64;
                if entry.seq != next {
                    let reason = format!("seq={next} is missing in it; nothing beyond is trimmed");
                    return Err(BrokerError::Invalid { action: "trim the log", reason });
                }
                if entry.seq >= rule.before || entry.stored_ns > rule.stored_before_ns {
                    return Ok((entries, false));
                }
                bytes += entry.message.payload.len() as u64;
                entries.push(entry);
                if entries.len() >= rule.entries || bytes >= most_bytes {
                    return Ok((entries, true));
                }
            }
        }
        Ok((entries, false))
    }

    /// Writes the parts, then the manifest. Returns the stored manifest, which may be another
    /// process's.
    pub(crate) async fn write_segment(
        &self,
        log: u64,
        branch: u32,
        entries: &[LogEntry],
        runs: &BTreeSet<RunId>,
    ) -> Result<LogSegment, BrokerError> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else {
            return Err(invalid("it has no entries".to_owned()));
        };
        let parts = self.write_parts(entries, runs).await?;
        let segment = LogSegment { log: format!("{log:016x}"), first: first.seq, last: last.seq, parts };
        let manifest = serde_json::to_vec(&segment).expect("a manifest holds only what JSON can express");
        let path = paths::segment(log, branch, first.seq);
        self.objects.create(&path, Bytes::from(manifest)).await?;
        let standing = self.segment_at(log, branch, first.seq).await?;
        standing.ok_or_else(|| ObjectError::NotFound { path }.into())
    }

    /// Proves that a segment reads back as these entries of the log.
    async fn prove(&self, segment: &LogSegment, entries: &[LogEntry]) -> Result<(), BrokerError> {
        let stored = self.read_segment(segment).await?;
        if stored == entries {
            return Ok(());
        }
        let differs = stored.iter().zip(entries).find(|(stored, entry)| stored != entry);
        let seq = differs.map_or(segment.first, |(_, entry)| entry.seq);
        Err(invalid(format!(
            "the one of log={} that begins at seq={} differs from the log, first at seq={seq}; nothing is trimmed by it",
            segment.log, segment.first
        )))
    }

    /// The entries of a segment, in order.
    ///
    /// # Errors
    /// The object store fails, or holds something else.
    pub async fn read_segment(&self, segment: &LogSegment) -> Result<Vec<LogEntry>, BrokerError> {
        let mut entries = Vec::new();
        for part in &segment.parts {
            entries.append(&mut self.read_part(part).await?);
        }
        entries.sort_unstable_by_key(|entry| entry.seq);
        let whole = entries.iter().map(|entry| entry.seq).eq(segment.first..=segment.last);
        match whole {
            true => Ok(entries),
            false => Err(invalid(format!(
                "the one of log={} from seq={} to seq={} does not hold each position once",
                segment.log, segment.first, segment.last
            ))),
        }
    }

    /// Which log it is, and the position of its first entry. A worker may not ask a guarded server
    /// for them. Then it is the log whose segment was written last, and any entry may be trimmed;
    /// `None` where nothing is.
    async fn trimmed_range(&self) -> Result<Option<(u64, u64)>, BrokerError> {
        if self.asks_range.load(Ordering::Relaxed) {
            match self.queue.log_range().await {
                Ok(range) => return Ok(Some((range.id, range.first))),
                Err(QueueError::Refused { .. }) => self.asks_range.store(false, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
        let listed = self.objects.list_aged(paths::LOG).await?;
        let segments = listed.iter().filter_map(|listed| match paths::parse(&listed.path) {
            Some(ObjectKind::Segment { log, first, .. }) => Some((listed.modified_ms, first, log)),
            Some(_) | None => None,
        });
        Ok(segments.max().map(|(.., log)| (log, u64::MAX)))
    }

    /// Fills in entries of the log that are `None` in `found`, where a segment has them. One segment is held at a time.
    pub(super) async fn find_trimmed(
        &self,
        seqs: &[u64],
        found: &mut [Option<LogEntry>],
    ) -> Result<(), BrokerError> {
        let Some((log, first)) = self.trimmed_range().await? else { return Ok(()) };
        let mut wanted: Vec<usize> =
            (0..seqs.len()).filter(|at| found[*at].is_none() && seqs[*at] < first).collect();
        wanted.sort_unstable_by_key(|at| std::cmp::Reverse(seqs[*at]));
        let chain = match wanted.is_empty() {
            true => return Ok(()),
            false => self.segments(log).await?,
        };
        while let Some(at) = wanted.last().copied() {
            let last = match self.segment_with(log, &chain, seqs[at]).await? {
                None => seqs[at],
                Some(segment) => {
                    let entries = self.read_segment(&segment).await?;
                    for at in wanted.iter().copied().filter(|at| seqs[*at] <= segment.last) {
                        found[at] = entries.get((seqs[at] - segment.first) as usize).cloned();
                    }
                    segment.last
                }
            };
            wanted.retain(|at| seqs[*at] > last);
        }
        Ok(())
    }

    /// The segment whose first entry is at `first`, if it exists.
    ///
    /// # Errors
    /// The object store fails, or holds something else.
    pub async fn segment_at(
        &self,
        log: u64,
        branch: u32,
        first: u64,
    ) -> Result<Option<LogSegment>, BrokerError> {
        let path = paths::segment(log, branch, first);
        let Some(content) = self.objects.get(&path).await? else { return Ok(None) };
        let wrong =
            |reason: String| invalid(format!("the manifest path={path} cannot be believed: {reason}"));
        let segment: LogSegment = serde_json::from_slice(&content).map_err(|e| wrong(e.to_string()))?;
        if segment.log != format!("{log:016x}") || segment.first != first || segment.last < first {
            return Err(wrong("it is of another place".to_owned()));
        }
        Ok(Some(segment))
    }

    /// The segment that holds a position, if one of these does.
    ///
    /// # Errors
    /// The object store fails, or holds something else.
    pub async fn segment_with(
        &self,
        log: u64,
        chain: &Chain,
        seq: u64,
    ) -> Result<Option<LogSegment>, BrokerError> {
        let Some((branch, first)) = chain.before(seq) else { return Ok(None) };
        let found = self.segment_at(log, branch, first).await?;
        Ok(found.filter(|segment| (segment.first..=segment.last).contains(&seq)))
    }
}

fn invalid(reason: String) -> BrokerError {
    BrokerError::Invalid { action: "read a segment of the log", reason }
}
