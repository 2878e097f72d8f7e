//! The groups of a run that are as old as the bound allows, and the oldest version that may still
//! sample for a group.

use millrace_schemas::PolicyVersion;

use crate::fold::state::Run;
use crate::fold::window;

/// The groups at the bound of staleness, each with whether it is still playing.
pub(crate) fn oldest(run: &Run) -> Vec<(bool, u64)> {
    let (bound, version) = (run.spec.max_staleness(), run.version());
    let oldest = run.groups.iter().filter(|(_, group)| bound > 0 && group.staleness(version) == bound);
    oldest.map(|(id, group)| (group.playing > 0, *id)).collect()
}

/// Whether a batch would have no place left for this group if it became as old as the bound allows.
fn may_not_be_oldest(run: &Run, id: u64) -> bool {
    let mut oldest = oldest(run);
    if oldest.iter().any(|(_, group)| *group == id) {
        return false;
    }
    oldest.push((true, u64::MAX));
    !window::beyond_oldest_share(&run.spec, oldest).is_empty()
}

/// The oldest version that may have sampled a token of the group. `first` is the version of the
/// turn that is about to join it. A worker that is behind could make a group as old as the bound
/// when the batch's places for such groups are already taken.
pub(crate) fn floor_of(run: &Run, group: u64, first: Option<PolicyVersion>) -> PolicyVersion {
    if run.is_held_out(group) {
        return run.version();
    }
    let floor = window::floor(&run.spec, run.version());
    let has_no_place = first == Some(floor) && floor < run.version() && may_not_be_oldest(run, group);
    if has_no_place { floor.next() } else { floor }
}
