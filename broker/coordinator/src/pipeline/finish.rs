//! The end of a run: all steps done, cancelled, or a step that nobody can do.

use millrace_schemas::api::RunState;
use millrace_schemas::notice::Notice;
use millrace_schemas::subjects::tasks_of_run;
use millrace_schemas::{Stage, TaskKey};

use crate::books::DropReason;
use crate::command::{Command, Commands};
use crate::outstanding;
use crate::pipeline::{admit, train_shard};
use crate::state::Run;
use crate::status;

/// Moves a run whose last version stands towards its end.
pub(super) fn check(run: &mut Run, out: &mut Commands) {
    if run.state.is_over() || run.version().0 < run.spec.steps || run.policy.is_none() {
        return;
    }
    run.state = RunState::Finishing;
    admit::drop_all(run, DropReason::Surplus);
    if run.evaluation.is_none() {
        end(run, RunState::Finished, out);
    }
}

/// Ends a run by request: what is in flight is dropped.
pub(super) fn cancel(run: &mut Run, reason: &str, out: &mut Commands) {
    if run.is_closed() {
        return;
    }
    run.reason = Some(reason.to_owned());
    run.broken = None;
    run.evaluation = None;
    // What was in training goes the way of the rest.
    run.groups.extend(run.training.take().map(|training| training.groups).unwrap_or_default());
    admit::drop_all(run, DropReason::Cancelled);
    end(run, RunState::Cancelled, out);
}

/// Halts a run because `key` cannot be done. Nothing is dropped: the run goes on once `key` is requeued.
pub(super) fn fail(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    run.reason = Some(format!("task {key} failed: {reason}"));
    run.broken = Some(key);
    let notice = Notice::DeadLetter { run: run.spec.name.clone(), task: key, reason: reason.to_owned() };
    out.push(Command::Notice(Box::new(notice)));
    run.state = RunState::Failed;
    tell(run, out);
}

/// A dead letter is tried again: the run that it had ended goes on.
pub(super) fn revive(run: &mut Run, key: TaskKey, out: &mut Commands) {
    if run.broken != Some(key) {
        return;
    }
    run.broken = None;
    run.reason = None;
    run.ended_unix_ms = 0;
    run.state = if run.policy.is_none() { RunState::Starting } else { RunState::Running };
    train_shard::revive(run, out);
    outstanding::of_run(run, out);
    admit::refill(run, out);
}

fn end(run: &mut Run, state: RunState, out: &mut Commands) {
    run.state = state;
    if let Some(policy) = run.policy.as_mut() {
        policy.ended = true;
        out.push(Command::SetPolicy { run: run.spec.name.clone(), policy: policy.clone() });
    }
    for stage in Stage::QUEUED {
        out.push(Command::Purge { stage, filter: tasks_of_run(stage, &run.spec.name) });
    }
    tell(run, out);
}

fn tell(run: &Run, out: &mut Commands) {
    out.push(Command::Notice(Box::new(Notice::Ended {
        run: run.spec.name.clone(),
        state: run.state.name().to_owned(),
        version: run.version(),
        ledger: status::ledger(run),
    })));
}

/// Notes the log's time in a run when it ends.
pub(super) const fn stamp_end(run: &mut Run) {
    if run.state.is_over() && run.ended_unix_ms == 0 {
        run.ended_unix_ms = run.now_unix_ms();
    }
}
