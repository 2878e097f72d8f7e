//! Ends a run whose steps are all done.

use millrace_schemas::api::RunState;

use crate::fold::books::DropReason;
use crate::fold::command::Commands;
use crate::fold::state::Run;
use crate::fold::{groups, lifecycle};

/// Ends a run whose last version is committed, after its last evaluation.
pub(super) fn finish_if_done(run: &mut Run, out: &mut Commands) {
    if !run.state.works() || run.version().0 < run.spec.steps || run.policy.is_none() {
        return;
    }
    run.state = RunState::Finishing;
    groups::drop_all(run, DropReason::Surplus);
    if run.evaluation.is_none() {
        lifecycle::end(run, RunState::Finished, out);
    }
}
