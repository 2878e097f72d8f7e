//! The books of a run: every rollout admitted is trained, dropped with a reason, or in flight.

use std::collections::BTreeMap;

use millrace_schemas::api::{CurvePoint, Evaluation};
use millrace_schemas::counters::RunCounters;
use millrace_schemas::{PolicyVersion, RolloutId, Stage};
use serde::{Deserialize, Serialize};

use crate::fold::milestone::{Milestone, Milestones};

mod domain;

pub use domain::DomainBooks;

/// Why a rollout was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DropReason {
    /// It started too many versions ago.
    Stale,
    /// Its group's rewards were all equal.
    Filtered,
    /// It could not be played or scored.
    Failed,
    /// Its environment was gone with the worker that hosted it.
    Lost,
    /// Another rollout of its group had used up its replacements.
    GroupFailed,
    /// The run was cancelled.
    Cancelled,
    /// The run needed no more rollouts.
    Surplus,
    /// Another batch was already committed for the version that it was trained for.
    Superseded,
}

impl DropReason {
    /// The name in ledgers, reports and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stale => "stale",
            Self::Filtered => "filtered",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::GroupFailed => "group_failed",
            Self::Cancelled => "cancelled",
            Self::Surplus => "surplus",
            Self::Superseded => "superseded",
        }
    }
}

/// Points kept of the learning curve. Above this, every other point is dropped.
const MAX_CURVE_POINTS: usize = 1_000;

/// Counters of a run. Rollouts in flight are not among them: they are counted from the groups in
/// the state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Books {
    /// Rollouts started, including replacements, without evaluation.
    pub admitted: u64,
    /// Rollouts that a committed version was trained on.
    pub trained: u64,
    /// Rollouts dropped.
    pub dropped: BTreeMap<DropReason, u64>,
    /// Worker microseconds spent on dropped rollouts.
    pub wasted_us: BTreeMap<DropReason, u64>,
    /// Worker microseconds by stage.
    pub busy_us: BTreeMap<Stage, u64>,
    /// Trained rollouts; the index is the staleness, in versions.
    pub staleness: Vec<u64>,
    /// Tokens and turns.
    #[serde(flatten)]
    pub counters: RunCounters,
    /// Outcomes that no rollout waited for: second outcomes, and outcomes of dropped work.
    pub late_outcomes: u64,
    /// Outcomes that were refused as impossible. Their tasks count as failed.
    #[serde(default)]
    pub refused_outcomes: u64,
    /// Tasks that workers returned undone and that were requeued.
    #[serde(default)]
    pub returned: u64,
    /// Attempts of steps that were void because the gang lost a member.
    #[serde(default)]
    pub void_steps: u64,
    /// Steps so far, thinned to every `curve_stride`th.
    pub curve: Vec<CurvePoint>,
    /// One point of the curve is kept in this many steps; 0 means 1.
    pub curve_stride: u64,
    /// Evaluations so far.
    pub evaluations: Vec<Evaluation>,
    /// Step metrics of the last step, by name.
    pub metrics: BTreeMap<String, f64>,
    /// Rollouts dropped since the object store was last seen to have no newer version than the log.
    /// If the log lost its newest part, a committed version may turn out to have trained on one of
    /// them.
    #[serde(default)]
    pub dropped_lately: BTreeMap<RolloutId, Dropped>,
    /// The same counters by domain number; empty for a run with one domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<DomainBooks>,
    /// What happened during the event that is being folded; empty between events.
    #[serde(skip)]
    pub(crate) milestones: Milestones,
}

/// A drop as it was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Dropped {
    /// The reason that it was counted under.
    pub reason: DropReason,
    /// Worker microseconds that were spent on it.
    pub busy_us: u64,
}

impl Books {
    /// The books of a domain; `None` for a run with one domain.
    pub(crate) fn domain(&mut self, number: u32) -> Option<&mut DomainBooks> {
        self.domains.get_mut(number as usize)
    }

    /// Counts a rollout of a domain as admitted at `version`.
    pub fn admit(&mut self, rollout: RolloutId, domain: u32, version: PolicyVersion) {
        self.admitted += 1;
        if let Some(domain) = self.domain(domain) {
            domain.admitted += 1;
        }
        self.milestones.add(|| Milestone::Admitted { rollout, version, evaluate: false });
    }

    /// Counts a dropped rollout and the worker time that it used.
    pub fn drop_rollout(&mut self, id: RolloutId, domain: u32, reason: DropReason, busy_us: u64) {
        *self.dropped.entry(reason).or_default() += 1;
        if let Some(domain) = self.domain(domain) {
            *domain.dropped.entry(reason).or_default() += 1;
        }
        let wasted = self.wasted_us.entry(reason).or_default();
        *wasted = wasted.saturating_add(busy_us);
        self.dropped_lately.insert(id, Dropped { reason, busy_us });
        self.milestones.add(|| Milestone::Dropped { rollout: id, reason: reason.name(), busy_us });
    }

    /// Reverses a recent drop. Returns whether there was one: such a rollout is already counted as
    /// admitted.
    pub fn take_back(&mut self, id: RolloutId, domain: u32) -> bool {
        let Some(Dropped { reason, busy_us }) = self.dropped_lately.remove(&id) else { return false };
        let less = |count: Option<&mut u64>, by: u64| {
            if let Some(count) = count {
                *count = count.saturating_sub(by);
            }
        };
        less(self.dropped.get_mut(&reason), 1);
        less(self.wasted_us.get_mut(&reason), busy_us);
        less(self.domain(domain).and_then(|domain| domain.dropped.get_mut(&reason)), 1);
        true
    }

    /// Counts a rollout as trained on at `version`, in the step that made the next one.
    pub fn train_rollout(
        &mut self,
        rollout: RolloutId,
        domain: u32,
        version: PolicyVersion,
        start: PolicyVersion,
    ) {
        self.trained += 1;
        let (made, staleness) = (version.next(), version.staleness(start));
        self.milestones.add(|| Milestone::Trained { rollout, made, staleness });
        count_staleness(&mut self.staleness, version, start);
        if let Some(domain) = self.domain(domain) {
            domain.trained += 1;
            count_staleness(&mut domain.staleness, version, start);
        }
    }

    /// Adds a step to the curve.
    pub fn add_point(&mut self, point: CurvePoint) {
        let stride = self.curve_stride.max(1);
        if point.version.is_multiple_of(stride) {
            self.curve.push(point);
        }
        if self.curve.len() > MAX_CURVE_POINTS {
            self.curve_stride = 2 * stride;
            self.curve.retain(|kept| kept.version.is_multiple_of(2 * stride));
        }
    }
}

/// Evaluations that are kept. Above this, every other one is dropped, except the first and the
/// last.
pub(crate) const MAX_EVALUATIONS: usize = 500;

/// Adds an evaluation to those so far.
pub(crate) fn add_evaluation(evaluations: &mut Vec<Evaluation>, evaluation: Evaluation) {
    if evaluations.len() >= MAX_EVALUATIONS {
        // Every second version, with all of its temperatures.
        let (mut last, mut number) = (None, 0_u64);
        evaluations.retain(|evaluation| {
            number += u64::from(last.replace(evaluation.version) != Some(evaluation.version));
            !number.is_multiple_of(2)
        });
    }
    evaluations.push(evaluation);
}

/// At most `most` of the items, evenly spaced, including the last.
pub(crate) fn thinned<T: Clone>(items: &[T], most: usize) -> Vec<T> {
    let stride = items.len().div_ceil(most.max(1)).max(1);
    let last = items.len().saturating_sub(1) % stride;
    items.iter().skip(last).step_by(stride).cloned().collect()
}

/// Counts keyed by the reason's name.
pub(crate) fn by_reason(counts: &BTreeMap<DropReason, u64>) -> BTreeMap<String, u64> {
    counts.iter().map(|(reason, count)| (reason.name().to_owned(), *count)).collect()
}

/// Counts a rollout that started at `start` and is trained at `version`, by its staleness.
fn count_staleness(counts: &mut Vec<u64>, version: PolicyVersion, start: PolicyVersion) {
    let staleness = usize::try_from(version.staleness(start)).unwrap_or(usize::MAX).min(1_000);
    if counts.len() <= staleness {
        counts.resize(staleness + 1, 0);
    }
    counts[staleness] += 1;
}

#[cfg(test)]
mod tests {
    use millrace_schemas::envelope::{decode, encode};

    use super::*;

    /// The start of the books before their counters were a struct.
    #[derive(Serialize)]
    struct Flat {
        admitted: u64,
        trained: u64,
        dropped: BTreeMap<DropReason, u64>,
        wasted_us: BTreeMap<DropReason, u64>,
        busy_us: BTreeMap<Stage, u64>,
        staleness: Vec<u64>,
        sampled_tokens: u64,
        turns: u64,
        prefill_tokens: u64,
        cached_tokens: u64,
        trained_turns: u64,
        surplus_turns: u64,
        late_outcomes: u64,
        refused_outcomes: u64,
        returned: u64,
        void_steps: u64,
        curve: Vec<CurvePoint>,
        curve_stride: u64,
        evaluations: Vec<Evaluation>,
        metrics: BTreeMap<String, f64>,
        dropped_lately: BTreeMap<RolloutId, Dropped>,
    }

    #[test]
    fn counters_lie_in_a_snapshot_as_fields_of_the_books() {
        let id = RolloutId { group: 300, index: 2, attempt: 1 };
        let point = CurvePoint { version: 1, success: 0.5, reward: 0.25, at_ms: 1_000 };
        let flat = Flat {
            admitted: 300,
            trained: 200,
            dropped: [(DropReason::Stale, 3)].into(),
            wasted_us: [(DropReason::Stale, 70_000)].into(),
            busy_us: [(Stage::Generate, 1 << 40)].into(),
            staleness: vec![190, 10],
            sampled_tokens: 1 << 33,
            turns: 70_000,
            prefill_tokens: 5,
            cached_tokens: 300,
            trained_turns: 40,
            surplus_turns: 6,
            late_outcomes: 7,
            refused_outcomes: 8,
            returned: 9,
            void_steps: 10,
            curve: vec![point],
            curve_stride: 1,
            evaluations: vec![],
            metrics: [("loss".to_owned(), 0.5)].into(),
            dropped_lately: [(id, Dropped { reason: DropReason::Stale, busy_us: 70_000 })].into(),
        };
        let bytes = encode(&flat);
        let books: Books = decode("books", &bytes).unwrap();
        let Books { admitted, counters, late_outcomes, void_steps, .. } = &books;
        assert_eq!((*admitted, *late_outcomes, *void_steps), (300, 7, 10));
        assert_eq!((counters.sampled_tokens, counters.turns, counters.prefill_tokens), (1 << 33, 70_000, 5));
        assert_eq!((counters.cached_tokens, counters.trained_turns, counters.surplus_turns), (300, 40, 6));
        assert_eq!(books.dropped_lately, flat.dropped_lately);
        assert!(encode(&books) == bytes, "no byte differs");
    }

    #[test]
    fn books_from_before_some_counters_are_read() {
        let old = serde_json::json!({
            "admitted": 12, "trained": 8, "dropped": {}, "wasted_us": {}, "busy_us": {}, "staleness": [8],
            "sampled_tokens": 100, "turns": 20, "late_outcomes": 1, "curve": [], "curve_stride": 1,
            "evaluations": [], "metrics": {},
        });
        let books: Books = decode("books", &encode(&old)).unwrap();
        assert_eq!(books.counters, RunCounters { sampled_tokens: 100, turns: 20, ..RunCounters::default() });
    }
}
