//! Which versions may sample: the oldest one for a rollout, the one for a group when the batch's
//! places for the oldest groups are taken, and the groups that are as old as the bound allows.

use millrace_schemas::{PolicyVersion, RunSpec};

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

/// The oldest version that may have sampled a token of a rollout, while `version` is the newest: that
/// one alone in an evaluation.
pub(crate) fn floor(spec: &RunSpec, version: PolicyVersion, evaluate: bool) -> PolicyVersion {
    if evaluate { version } else { window::floor(spec, version) }
}

/// As [`floor`], for a turn that joins the group now. `first` is the turn's version. A worker that is
/// behind could make a group as old as the bound when the batch's places for such groups are already
/// taken.
pub(crate) fn floor_of(run: &Run, group: u64, first: Option<PolicyVersion>) -> PolicyVersion {
    let floor = floor(&run.spec, run.version(), run.is_held_out(group));
    let has_no_place = first == Some(floor) && floor < run.version() && may_not_be_oldest(run, group);
    if has_no_place { floor.next() } else { floor }
}
