//! Decisions that follow from a run's state, for every kind of event. Their order is fixed here and
//! nowhere else.

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
mod patience;
mod ranks;

/// What decisions depend on. If an event leaves it unchanged, only ranks may have to be assigned.
/// So the event of a turn does not scan the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    state: RunState,
    version: Option<PolicyVersion>,
    groups: usize,
    ready: usize,
    held_out: Option<usize>,
    in_step: bool,
    /// While a full batch waits, the run's time: each tick decides again.
    held: Option<u64>,
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
            held: run.held_since_ms.map(|_| run.at_ms),
        }
    }
}

/// Decides what follows from an event. `before` are the run's marks before the event.
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
