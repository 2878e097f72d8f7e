//! Log segments: what was trimmed from the log, in the object store, so that log and segments together remain the dataset.
//!
//! A segment holds all entries of a range of positions. Its entries are parted by run, each part a blob of that run
//! beside an index of it; the manifest, written last and created once, names the parts. Whoever reads position by
//! position merges the parts; whoever reads one run reads that run's parts alone.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::blob::BlobRef;
use crate::ids::{RolloutId, RunId};
use crate::version::PolicyVersion;

/// The manifest of a segment, as JSON. Its existence is the proof that its entries may be trimmed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogSegment {
    /// Which log, as 16 hex digits.
    pub log: String,
    /// Position of its first entry.
    pub first: u64,
    /// Position of its last entry; each position between is in one part.
    pub last: u64,
    /// Its entries by run, in the order of the runs' names. What belongs to no known run is with the events of all.
    pub parts: Vec<SegmentPart>,
}

/// The entries of one run in a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentPart {
    /// Whose blobs `data` and `index` are.
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
    /// Payloads; empty where a header names a blob.
    pub payload: Vec<Bytes>,
}

impl SegmentEntries {
    /// Number of entries; `None` where the columns differ in length or the positions do not ascend.
    #[must_use]
    pub fn entries(&self) -> Option<usize> {
        let Self { seq, stored_ns, subject, headers, payload } = self;
        let same = [stored_ns.len(), subject.len(), headers.len(), payload.len()];
        let sound = same.iter().all(|length| *length == seq.len()) && seq.windows(2).all(|w| w[0] < w[1]);
        sound.then_some(seq.len())
    }
}

/// What is where in a part. Positions are those of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentIndex {
    /// Outcomes and dead letters of each rollout's tasks.
    pub rollouts: Vec<RolloutEntries>,
    /// By policy version: turns that it sampled a token of, and what its training step and commit came to.
    pub versions: BTreeMap<PolicyVersion, Vec<u64>>,
    /// Payloads in the object store and rows that runs ask, which stay for as long as the segment does.
    pub claims: Vec<Claim>,
}

/// A payload in the object store.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// Whose blob it is.
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
