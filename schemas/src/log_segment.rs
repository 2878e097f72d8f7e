//! Log segments: entries that were trimmed from the log, in the object store. Log and segments
//! together remain the dataset.
//!
//! A segment holds all entries of a range of positions. Its entries are divided by run. Each part
//! is a blob of that run with an index beside it. The manifest, written last and created once,
//! refers to the parts. A reader of the whole log merges the parts; a reader of one run reads that
//! run's parts only.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::ids::{RolloutId, RunId};
use crate::version::PolicyVersion;

/// The manifest of a segment, as JSON. If it exists, the entries may be trimmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSegment {
    /// Id of the log, as 16 hex digits.
    pub log: String,
    /// Position of its first entry.
    pub first: u64,
    /// Position of its last entry; each position between is in one part.
    pub last: u64,
    /// Its entries by run, in the order of the runs' names. Entries of no known run are in the part
    /// of events of all runs.
    pub parts: Vec<SegmentPart>,
}

/// The entries of one run in a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPart {
    /// The run that owns the blobs `data` and `index`.
    pub run: RunId,
    /// Number of entries.
    pub entries: u64,
    /// Bytes of `data` before compression.
    pub raw_bytes: u64,
    /// [`SegmentEntries`] as MessagePack, compressed by zstd.
    pub data: BlobRef,
    /// [`SegmentIndex`] as MessagePack.
    pub index: BlobRef,
}

/// Entries as they were in the log, by column. All columns have one length, `[N]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntries {
    /// Positions, ascending.
    pub seq: Vec<u64>,
    /// When the server stored each, in nanoseconds of its clock.
    pub stored_ns: Vec<u64>,
    /// Subjects.
    pub subject: Vec<String>,
    /// Headers by name.
    pub headers: Vec<Vec<(String, String)>>,
    /// Payloads; empty if a header refers to a blob.
    pub payload: Vec<Bytes>,
}

impl SegmentEntries {
    /// Number of entries; `None` if the columns differ in length or the positions do not ascend.
    #[must_use]
    pub fn entries(&self) -> Option<usize> {
        let Self { seq, stored_ns, subject, headers, payload } = self;
        let same = [stored_ns.len(), subject.len(), headers.len(), payload.len()];
        let sound = same.iter().all(|length| *length == seq.len()) && seq.windows(2).all(|w| w[0] < w[1]);
        sound.then_some(seq.len())
    }
}

/// The index of a part. Positions are those of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentIndex {
    /// Outcomes and dead letters of each rollout's tasks.
    pub rollouts: Vec<RolloutEntries>,
    /// By policy version: turns with a token that it sampled, and the outcomes of its training step
    /// and commit.
    pub versions: BTreeMap<PolicyVersion, Vec<u64>>,
    /// Payloads in the object store and rows of datasets, which are kept as long as the segment.
    pub claims: Vec<Claim>,
}

/// A payload in the object store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// The run that owns the blob.
    pub run: RunId,
    /// The blob.
    pub blob: BlobRef,
}

/// Where a rollout's entries are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolloutEntries {
    /// The rollout.
    pub rollout: RolloutId,
    /// Positions, ascending.
    pub seq: Vec<u64>,
}
