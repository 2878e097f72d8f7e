//! The staleness budget. Admission bounds how much is in flight. The staleness bound itself is
//! exact for each rollout, and is checked when a batch is cut and when a version is published.

use millrace_schemas::PolicyVersion;
use millrace_schemas::submit::{ConsumeOrder, RunSpec};

/// The inputs of admission.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// The current version, which equals the number of steps done.
    pub version: PolicyVersion,
    /// Groups playing or finished, the batch in training included.
    pub groups: u64,
    /// Whether a batch is in training.
    pub trains: bool,
}

/// How many groups may be admitted now. The window is `(1 + α)·B` groups plus the redundant ones.
/// No more groups are started than the remaining steps can train, apart from the redundant ones.
/// With α = 0 nothing is admitted during a step: its rollouts would be stale in the next.
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

/// A finished group that waits for a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ready {
    /// Number of the group.
    pub group: u64,
    /// Number of its domain.
    pub domain: u32,
    /// Its greatest staleness at the version to be trained.
    pub staleness: u64,
}

/// Chooses the batch among finished groups, which come in the order in which they finished. `None`
/// while there are too few. A group beyond the bound is never chosen; with a fractional α, of the
/// groups exactly `⌈α⌉` behind at most `⌊frac(α)·B⌋` are, as ROLL divides its oldest step. More
/// than that are never kept (see [`beyond_oldest_share`]), so that a batch can always be completed.
/// `room` is how many groups of each domain the batch takes, B in total. The batch waits for a slow
/// domain, which has that many groups in play.
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

/// Groups at the bound for which the next batch has no place. They could not be chosen later
/// either, because they would be too old, and would occupy the window for ever. `oldest` are all
/// groups at the bound, each with whether it is still playing. Finished groups are kept first, then
/// those that were admitted first.
#[must_use]
pub fn beyond_oldest_share(spec: &RunSpec, mut oldest: Vec<(bool, u64)>) -> Vec<u64> {
    let share = spec.oldest_groups();
    // A whole batch may be that old. A group that is not chosen now becomes stale with the next
    // version.
    if share >= u64::from(spec.rollout.groups_per_step) {
        return Vec::new();
    }
    oldest.sort_unstable();
    oldest.into_iter().skip(share as usize).map(|(_, group)| group).collect()
}
