//! What follows from a run's state, whatever the event was. The order below is the only place where one decision comes
//! before another.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::RunState;

use crate::fold::command::Commands;
use crate::fold::gang::Members;
use crate::fold::state::Run;

mod stale;
mod admission;
pub mod evaluation;
mod completion;
mod batch;
mod ranks;

/// What decisions follow from. While it is the same after an event as before, there is nothing to decide but who makes
/// a step; so the event of a turn costs no look at the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    state: RunState,
    version: Option<PolicyVersion>,
    groups: usize,
    ready: usize,
    held_out: Option<usize>,
    in_step: bool,
}

impl Marks {
    pub(crate) fn of(run: &Run) -> Self {
        Self {
            state: run.state,
            version: run.policy.as_ref().map(|policy| policy.version),
            groups: run.groups.len(),
            ready: run.ready.len(),
            held_out: run.evaluation.as_ref().map(|evaluation| evaluation.groups.len()),
            in_step: run.training.is_some(),
        }
    }
}

/// Decides what follows from an event that found the run as `before`.
pub(crate) fn follow(run: &mut Run, before: Marks, members: &Members, out: &mut Commands) {
    let now = Marks::of(run);
    if now != before {
        if now.version != before.version {
            stale::restart(run, out);
        }
        admission::refill(run, out);
        evaluation::end_and_begin(run, out);
        completion::finish_if_done(run, out);
        batch::cut(run, out);
    }
    ranks::assign(run, members, out);
}
