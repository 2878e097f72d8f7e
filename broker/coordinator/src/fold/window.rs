//! The staleness budget. Admission bounds how much is in flight; the bound itself is exact, per rollout, and
//! is checked when a batch is cut and when a version is published.

use millrace_schemas::PolicyVersion;
use millrace_schemas::submit::{ConsumeOrder, RunSpec};

/// What the rules of admission look at.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The current version, which is also the number of steps done.
    pub version: PolicyVersion,
    /// Groups playing or finished, the batch in training included.
    pub groups: u64,
    /// Whether a batch is in training.
    pub trains: bool,
}

/// How many groups may be admitted now: the window is `(1 + α)·B` groups and the redundant ones. Besides those, no more are
/// started than the steps that are left can train. With an α of 0 nothing that is played while a step is made can be
/// trained in the next.
#[must_use]
pub fn admissible(spec: &RunSpec, load: Load) -> u64 {
    let steps_left = spec.steps.saturating_sub(load.version.0);
    if steps_left == 0 || load.trains && spec.max_staleness() == 0 {
        return 0;
    }
    let (batch, redundant) = (spec.rollout.groups_per_step.into(), u64::from(spec.rollout.redundant_groups));
    let trainable = steps_left.saturating_mul(batch);
    spec.window_groups().min(trainable.saturating_add(redundant)).saturating_sub(load.groups)
}

/// The oldest start version that a step on `version` may use.
#[must_use]
pub fn floor(spec: &RunSpec, version: PolicyVersion) -> PolicyVersion {
    version.floor(spec.max_staleness())
}

/// A finished group that waits to be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// The group.
    pub group: u64,
    /// Number of its domain.
    pub domain: u32,
    /// Its greatest staleness at the version to be trained.
    pub staleness: u64,
}

/// Chooses the batch among finished groups, which come in the order in which they finished. `None` while
/// there are too few. A group beyond the bound is never chosen; with a fractional α, of the groups exactly
/// `⌈α⌉` behind at most `⌊frac(α)·B⌋` are, as ROLL shares out its oldest step. More than that are never kept (see
/// [`beyond_oldest_share`]), so that enough can be chosen in the end. `room` is how many groups of each domain
/// the batch takes, B together: it waits for a domain that is slow, which has as many in play.
#[must_use]
pub fn choose_batch(spec: &RunSpec, mut room: Vec<u64>, ready: &[Ready]) -> Option<Vec<u64>> {
    let batch = spec.rollout.groups_per_step as usize;
    let (bound, mut oldest_share) = (spec.max_staleness(), spec.oldest_groups());
    let mut candidates: Vec<Ready> = ready.iter().copied().filter(|r| r.staleness <= bound).collect();
    if spec.rollout.order == ConsumeOrder::OldestFirst {
        candidates.sort_by_key(|r| r.group);
    }
    candidates.retain(|r| {
        let is_oldest = r.staleness == bound && bound > 0;
        let Some(room) = room.get_mut(r.domain as usize).filter(|room| **room > 0) else { return false };
        if is_oldest && oldest_share == 0 {
            return false;
        }
        *room -= 1;
        oldest_share -= u64::from(is_oldest);
        true
    });
    candidates.truncate(batch);
    (candidates.len() == batch).then(|| candidates.iter().map(|r| r.group).collect())
}

/// Groups at the bound for which the next batch has no places: they could be chosen neither now nor, being older then,
/// later, and would hold their places in the window for ever. `oldest` are all that are at the bound, each with whether it
/// is still playing; those that are finished are kept first, then those that were admitted first.
#[must_use]
pub fn beyond_oldest_share(spec: &RunSpec, mut oldest: Vec<(bool, u64)>) -> Vec<u64> {
    let share = spec.oldest_groups();
    // All of a batch may be as old as that: whatever is not chosen now becomes stale with the next version.
    if share >= u64::from(spec.rollout.groups_per_step) {
        return Vec::new();
    }
    oldest.sort_unstable();
    oldest.into_iter().skip(share as usize).map(|(_, group)| group).collect()
}
