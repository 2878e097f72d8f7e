//! Trims the log behind two good snapshots, up to the oldest entry that is still referred to.
//! Trimmed entries are first written to a segment in the object store and verified. Only the leader
//! trims, beside the fold; nothing waits for it.
//!
//! What reads an entry that is referred to finds it in a segment too, which costs more. So a log
//! that is half full is trimmed up to its newest snapshot, whatever is referred to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_queue::port::LogRange;
use millrace_queue::{Broker, BrokerError, ObjectError, TrimRule};
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
struct Need {
    /// Position of the last entry that is folded into it.
    seq: u64,
    /// Position of the first entry that it refers to, or that is folded next.
    from: u64,
}

impl Need {
    /// What `state` needs of a log whose oldest entry is `first`.
    fn of(state: &State, first: u64) -> Self {
        let next = state.seq + 1;
        Self { seq: state.seq, from: state.oldest_entry(first).map_or(next, |oldest| oldest.min(next)) }
    }
}

/// What snapshots need, by path.
type Needs = BTreeMap<String, Need>;

/// How often the interval is doubled while too few entries can be trimmed to fill a segment.
const MAX_DOUBLINGS: u32 = 6;

/// Result of a trim.
pub(super) struct Trimmed {
    /// Of the snapshots that there are.
    needs: Needs,
    /// Whether anything was moved.
    moved: bool,
    /// Whether the log has little room left.
    pressed: bool,
}

/// Progress of trimming.
pub(super) struct Trimming {
    /// Needs of the snapshots that were read for the last trim.
    needs: Needs,
    /// The current trim.
    pub(super) running: JoinSet<Result<Trimmed, BrokerError>>,
    not_before: Instant,
    /// Trims in a row that moved nothing.
    in_vain: u32,
    /// The log has little room left.
    pub(super) pressed: bool,
}

impl Trimming {
    pub(super) fn new() -> Self {
        Self {
            needs: Needs::new(),
            running: JoinSet::new(),
            not_before: Instant::now(),
            in_vain: 0,
            pressed: false,
        }
    }

    /// A snapshot was written, or the log is full: the next trim is due.
    pub(super) fn make_due(&mut self) {
        (self.not_before, self.in_vain) = (Instant::now(), 0);
    }

    /// Records the result of a trim. A failed one is retried after the interval.
    pub(super) fn ended(&mut self, result: Result<Trimmed, BrokerError>) {
        let moved = match result {
            Ok(Trimmed { needs, moved, pressed }) => {
                (self.needs, self.pressed) = (needs, pressed);
                moved || pressed
            }
            Err(error) => {
                tracing::warn!(%error, "failed to trim the log; it grows meanwhile");
                false
            }
        };
        self.in_vain = if moved { 0 } else { self.in_vain.saturating_add(1) };
    }
}

impl Driver {
    /// Starts a trim if one is due and none is running.
    pub(super) fn trim_where_due(&mut self) {
        let settings = self.config.trim;
        let Trimming { needs, running, not_before, in_vain, .. } = &mut self.trimming;
        if !self.acting || !running.is_empty() || Instant::now() < *not_before {
            return;
        }
        *not_before = Instant::now() + settings.every * (1 << (*in_vain).min(MAX_DOUBLINGS));
        let state = self.shared.lock();
        let age_ns = |age: Duration| u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
        // A full log gets no entries by which time could be read.
        let now_ns = state.stored_ns.saturating_add(age_ns(self.folded_at.elapsed()));
        let trim = Trim {
            broker: self.broker.clone(),
            term: self.term.clone(),
            known: needs.clone(),
            full: *self.full.borrow(),
            stored_before_ns: now_ns.saturating_sub(age_ns(settings.age)),
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
    /// Needs of snapshots that were read before.
    known: Needs,
    /// The log refuses entries.
    full: bool,
    stored_before_ns: u64,
    runs: BTreeSet<RunId>,
    entries: usize,
}

impl Trim {
    async fn run(self) -> Result<Trimmed, BrokerError> {
        let range = self.broker.queue().log_range().await?;
        let pressed = self.full || is_half_full(&range);
        let needs = self.needs(range.first).await?;
        let before = match needs.len() {
            0 => None,
            _ if pressed => needs.values().map(|need| need.seq + 1).max(),
            1 => None,
            _ => needs.values().map(|need| need.from).min(),
        };
        let mut moved = false;
        let may_act = || self.term.holds();
        let rule = TrimRule {
            before: before.unwrap_or(0),
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
        Ok(Trimmed { needs, moved, pressed })
    }

    /// What the newest two snapshots need, by any coordinator. A missing or damaged one is left out.
    async fn needs(&self, first: u64) -> Result<Needs, BrokerError> {
        let mut needs = Needs::new();
        for snapshot in journal::snapshots(&self.broker).await? {
            // What was trimmed although a snapshot refers to it holds nothing back any more.
            let known = self.known.get(&snapshot.path).filter(|need| need.from >= first);
            let need = match known {
                Some(need) => *need,
                None => match journal::load(&self.broker, &snapshot).await {
                    Ok(state) => Need::of(&state, first),
                    Err(BrokerError::Object(ObjectError::NotFound { .. } | ObjectError::Corrupt { .. })) => {
                        continue;
                    }
                    Err(error) => return Err(error),
                },
            };
            needs.insert(snapshot.path, need);
        }
        Ok(needs)
    }
}

/// Whether the log takes half of the bytes that it may.
fn is_half_full(range: &LogRange) -> bool {
    range.max_bytes.is_some_and(|most| range.bytes >= most / 2)
}
