//! Trims the log behind two good snapshots, up to the oldest entry that is still referred to.
//! Trimmed entries are first written to a segment in the object store and verified. Only the leader
//! trims, beside the fold; nothing waits for it.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use millrace_queue::{Broker, BrokerError, TrimRule};
use millrace_schemas::RunId;
use millrace_schemas::limits::{SEGMENT_ENTRIES, TRIM_AGE_MS, TRIM_EVERY_MS};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Driver;
use crate::fold::state::State;
use crate::shell::journal;
use crate::shell::leader::Term;

/// How the log is trimmed.
#[derive(Debug, Clone, Copy)]
pub struct TrimSettings {
    /// Interval between two attempts to trim.
    pub every: Duration,
    /// Minimal age of a trimmed entry, by the server's clock.
    pub age: Duration,
    /// Entries of a segment.
    pub entries: usize,
}

impl Default for TrimSettings {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(TRIM_EVERY_MS),
            age: Duration::from_millis(TRIM_AGE_MS),
            entries: SEGMENT_ENTRIES,
        }
    }
}

/// The part of the log that a snapshot needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    /// Position of the last entry that is folded into it.
    pub(super) seq: u64,
    /// Position of the first entry that it refers to, or that is folded next.
    pub(super) from: u64,
}

impl Need {
    pub(super) fn of(state: &State) -> Self {
        let next = state.seq + 1;
        Self { seq: state.seq, from: state.oldest_entry().map_or(next, |oldest| oldest.min(next)) }
    }
}

/// How often the interval is doubled while too few entries can be trimmed to fill a segment.
const MAX_DOUBLINGS: u32 = 6;

/// Progress of trimming.
pub(super) struct Trimming {
    /// Needs of the newest two snapshots that this process wrote.
    needs: VecDeque<Need>,
    /// The current trim; returns whether anything was moved.
    pub(super) running: JoinSet<Result<bool, BrokerError>>,
    not_before: Instant,
    /// Trims in a row that moved nothing.
    in_vain: u32,
}

impl Trimming {
    pub(super) fn new() -> Self {
        Self { needs: VecDeque::new(), running: JoinSet::new(), not_before: Instant::now(), in_vain: 0 }
    }

    /// A snapshot was written: more can be trimmed.
    pub(super) fn saved(&mut self, need: Need) {
        self.needs.push_front(need);
        self.needs.truncate(2);
        (self.not_before, self.in_vain) = (Instant::now(), 0);
    }

    /// Records the result of a trim. A failed one is retried after the interval.
    pub(super) fn ended(&mut self, result: Result<bool, BrokerError>) {
        self.in_vain = match result {
            Ok(true) => 0,
            Ok(false) => self.in_vain.saturating_add(1),
            Err(error) => {
                tracing::warn!(%error, "failed to trim the log; it grows meanwhile");
                self.in_vain.saturating_add(1)
            }
        };
    }

    /// Position of the first entry that stays; `None` until two snapshots are written.
    fn before(&self) -> Option<u64> {
        (self.needs.len() == 2).then(|| self.needs.iter().map(|need| need.from).min()).flatten()
    }
}

impl Driver {
    /// Starts a trim if one is due and none is running.
    pub(super) fn trim_where_due(&mut self) {
        let settings = self.config.trim;
        let before = self.trimming.before();
        let Trimming { needs, running, not_before, in_vain } = &mut self.trimming;
        let due = self.acting && running.is_empty() && Instant::now() >= *not_before;
        let Some(before) = before.filter(|_| due) else { return };
        *not_before = Instant::now() + settings.every * (1 << (*in_vain).min(MAX_DOUBLINGS));
        let state = self.shared.lock();
        let age_ns = u64::try_from(settings.age.as_nanos()).unwrap_or(u64::MAX);
        let trim = Trim {
            broker: self.broker.clone(),
            term: self.term.clone(),
            snapshots: needs.iter().map(|need| need.seq).collect(),
            before,
            stored_before_ns: state.stored_ns.saturating_sub(age_ns),
            runs: state.runs.keys().chain(state.archived.keys()).cloned().collect(),
            entries: settings.entries,
        };
        drop(state);
        running.spawn(trim.run());
    }
}

struct Trim {
    broker: Broker,
    term: Term,
    /// Positions of the snapshots that must exist, the newest first.
    snapshots: Vec<u64>,
    before: u64,
    stored_before_ns: u64,
    runs: BTreeSet<RunId>,
    entries: usize,
}

impl Trim {
    async fn run(self) -> Result<bool, BrokerError> {
        let kept = journal::snapshots(&self.broker).await?;
        if !kept.iter().map(|snapshot| snapshot.seq).eq(self.snapshots.iter().copied()) {
            return Ok(false);
        }
        let mut moved = false;
        let may_act = || self.term.holds();
        let rule = TrimRule {
            before: self.before,
            stored_before_ns: self.stored_before_ns,
            runs: &self.runs,
            entries: self.entries,
            may_act: &may_act,
        };
        while let Some(segment) = self.broker.trim_log(rule).await? {
            tracing::info!(from = segment.first, to = segment.last, "moved a part of the log into a segment");
            metrics::counter!("millrace_log_trimmed_entries_total")
                .increment(segment.last + 1 - segment.first);
            moved = true;
        }
        Ok(moved)
    }
}
