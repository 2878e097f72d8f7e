//! Invariants of every run under any faults, one file per invariant. Each checker reads only a
//! recorded [`History`] and counts from the log, the committed manifests and their batches. None
//! trusts a counter of the coordinator. The simulator and the harness on real processes use the
//! same checkers.

use std::fmt;

pub mod history;
pub mod puts;
pub mod record;
pub mod snapshots;

mod bounded_memory;
mod books_balance;
mod contexts_follow;
mod drains;
mod drops_have_reasons;
mod ends_in_time;
pub(crate) mod halts_have_a_cause;
mod no_task_lost;
pub mod objects_stand;
mod one_acts;
mod one_effect_per_task;
mod slots_conserved;
mod snapshots_load;
mod staleness_bounded;
mod steps_whole;
mod versions_monotonic;
mod witness;

#[cfg(test)]
mod testing;

pub use history::{Entry, History, PolicySeen};
pub use puts::PutWatch;
pub use record::{PolicyWatch, record};
pub use snapshots::SnapshotWatch;

/// Findings of one checker that are reported in full; of the rest only the number is reported.
const MAX_WORDS: usize = 10;

/// A checker: returns its findings as text; none for a sound history.
pub type Checker = fn(&History) -> Vec<String>;

/// All checkers by name.
pub const ALL: [(&str, Checker); 16] = [
    ("no_task_lost", no_task_lost::check),
    ("one_effect_per_task", one_effect_per_task::check),
    ("contexts_follow", contexts_follow::check),
    ("staleness_bounded", staleness_bounded::check),
    ("versions_monotonic", versions_monotonic::check),
    ("one_acts", one_acts::check),
    ("steps_whole", steps_whole::check),
    ("books_balance", books_balance::check),
    ("slots_conserved", slots_conserved::check),
    ("drops_have_reasons", drops_have_reasons::check),
    ("drains", drains::check),
    ("ends_in_time", ends_in_time::check),
    ("halts_have_a_cause", halts_have_a_cause::check),
    ("snapshots_load", snapshots_load::check),
    ("objects_stand", objects_stand::check),
    ("bounded_memory", bounded_memory::check),
];

/// Something that must hold and does not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// The checker's name.
    pub checker: &'static str,
    /// What is wrong.
    pub words: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.words)
    }
}

/// Runs all checkers.
#[must_use]
pub fn check(history: &History) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (checker, check) in ALL {
        let words = check(history);
        let more = words.len().saturating_sub(MAX_WORDS);
        findings.extend(words.into_iter().take(MAX_WORDS).map(|words| Finding { checker, words }));
        if more > 0 {
            findings.push(Finding { checker, words: format!("and {more} more") });
        }
    }
    findings
}
