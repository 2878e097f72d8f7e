//! The end of a run, all steps done or cancelled; and its pauses: by request, or for a step that nobody can do.

use millrace_schemas::api::RunState;
use millrace_schemas::limits::{FAILURES_BETWEEN_STEPS, FAILURES_IN_A_ROW, MAX_REASON_BYTES};
use millrace_schemas::notice::Notice;
use millrace_schemas::subjects::tasks_of_run;
use millrace_schemas::text::cut;
use millrace_schemas::{Stage, TaskKey};

use crate::books::DropReason;
use crate::command::{Command, Commands};
use crate::gang::Gang;
use crate::outstanding;
use crate::pipeline::{admit, evaluate, train_shard};
use crate::state::{Failures, Run, Worn};
use crate::status;

/// Moves a run whose last version stands towards its end.
pub(super) fn check(run: &mut Run, out: &mut Commands) {
    if !run.state.works() || run.version().0 < run.spec.steps || run.policy.is_none() {
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
    run.reason = Some(cut(reason, MAX_REASON_BYTES).to_owned());
    (run.broken, run.remedy) = (None, None);
    run.evaluation = None;
    // What was in training goes the way of the rest.
    run.groups.extend(run.training.take().map(|training| training.groups).unwrap_or_default());
    admit::drop_all(run, DropReason::Cancelled);
    end(run, RunState::Cancelled, out);
}

/// Pauses a run because `key` cannot be done.
pub(super) fn halt(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    run.broken = Some(key);
    tell_dead_letter(run, key, reason, out);
    let name = &run.spec.name;
    let remedy = format!("repair what the reason names, then `millrace resume {name}`");
    pause(run, &format!("task {key} failed: {reason}"), &remedy, out);
}

/// Tells whoever listens of a task of the step that became a dead letter.
pub(super) fn tell_dead_letter(run: &Run, key: TaskKey, reason: &str, out: &mut Commands) {
    let notice = Notice::DeadLetter { run: run.spec.name.clone(), task: key, reason: reason.to_owned() };
    out.push(Command::Notice(Box::new(notice)));
}

/// Pauses a run whose rollouts do nothing but fail: whatever it is, a person has to repair it.
pub(super) fn pause_if_only_failing(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    run.failures.in_a_row += 1;
    run.failures.since_step += 1;
    let (least, most) = FAILURES_IN_A_ROW;
    let rollouts = run.spec.window_groups().saturating_mul(run.spec.rollout.group_size.into());
    let in_a_row = rollouts.clamp(least, most);
    let Failures { in_a_row: failed, since_step } = run.failures;
    let words = if failed >= in_a_row {
        format!("{failed} rollouts failed and none was finished in between")
    } else if since_step >= FAILURES_BETWEEN_STEPS * in_a_row {
        format!("{since_step} rollouts failed since the last step")
    } else {
        return;
    };
    if run.state.works() {
        let name = &run.spec.name;
        let remedy = format!(
            "repair what the reason names, then `millrace resume {name}`; `millrace dead ls` lists the tasks"
        );
        pause(run, &format!("{words}; the last: task {key} failed: {reason}"), &remedy, out);
    }
}

/// Stops a run until it is resumed. Nothing is dropped. Its queued tasks are purged, so that workers are free for other
/// runs; outcomes of those in flight are taken in, and what follows from them is put when the run goes on.
pub(super) fn pause(run: &mut Run, reason: &str, remedy: &str, out: &mut Commands) {
    if run.state.is_over() {
        return;
    }
    let short = |text: &str| cut(text, MAX_REASON_BYTES).to_owned();
    let (reason, remedy) = (short(reason), short(remedy));
    run.state = RunState::Paused;
    purge_all(run, out);
    let notice =
        Notice::Paused { run: run.spec.name.clone(), reason: reason.clone(), remedy: remedy.clone() };
    (run.reason, run.remedy) = (Some(reason), Some(remedy));
    out.push(Command::Notice(Box::new(notice)));
}

/// A paused run goes on. A step that nobody could do is tried again.
pub(super) fn resume(run: &mut Run, out: &mut Commands) {
    if run.state != RunState::Paused {
        return;
    }
    if run.broken.take().is_some() || run.worn.again.is_some() {
        train_shard::retry(run, out);
    }
    go_on(run, out);
}

/// A dead letter is tried again: the run that it had paused goes on.
pub(super) fn revive(run: &mut Run, key: TaskKey, out: &mut Commands) {
    if run.worn.again.is_some_and(|(worn, _)| worn == key) {
        // A person was faster.
        run.worn.again = None;
    }
    if run.broken != Some(key) {
        return;
    }
    run.broken = None;
    train_shard::revive(run, out);
    go_on(run, out);
}

fn go_on(run: &mut Run, out: &mut Commands) {
    (run.reason, run.remedy) = (None, None);
    run.ended_unix_ms = 0;
    (run.failures, run.worn) = (Failures::default(), Worn::default());
    run.moved();
    run.state = match &run.policy {
        None => RunState::Starting,
        Some(policy) if policy.version.0 >= run.spec.steps => RunState::Finishing,
        Some(_) => RunState::Running,
    };
    out.push(Command::Notice(Box::new(Notice::Resumed { run: run.spec.name.clone() })));
    outstanding::of_run(run, out);
    if run.policy.is_some() {
        // What became due while it was paused.
        admit::refill(run, out);
        evaluate::begin_if_due(run, out);
        check(run, out);
        train_shard::cut(run, out);
    }
}

/// Leaves out the tasks of a run that is paused or over: events still move such a run on, and nothing is put of it.
pub(super) fn hold_back(run: &Run, out: &mut Commands) {
    if !run.state.works() {
        out.retain(|command| !matches!(command, Command::PutTask(task) if task.run == run.spec.name));
    }
}

fn end(run: &mut Run, state: RunState, out: &mut Commands) {
    run.state = state;
    forget(run);
    if let Some(policy) = run.policy.as_mut() {
        policy.ended = true;
        out.push(Command::SetPolicy { run: run.spec.name.clone(), policy: policy.clone() });
    }
    purge_all(run, out);
    tell(run, out);
}

/// Of a run that is over nothing is kept that grows with what it did, but its books.
fn forget(run: &mut Run) {
    run.ready = Vec::new();
    run.training = None;
    run.evaluation = None;
    run.evaluated.clear();
    run.gang = Gang { formed: run.gang.formed, ..Gang::default() };
    run.stored.forget();
    run.books.dropped_lately.clear();
}

/// Closes a run that cannot be folded; all others go on. Whatever state it is left in, nothing of it is looked at.
pub(super) fn quarantine(run: &mut Run, reason: &str, out: &mut Commands) {
    run.groups.clear();
    run.broken = None;
    let lost = run.books.admitted.saturating_sub(run.books.trained + run.books.dropped.values().sum::<u64>());
    *run.books.dropped.entry(DropReason::Cancelled).or_default() += lost;
    run.reason = Some(format!("the run cannot be folded: {}", cut(reason, MAX_REASON_BYTES)));
    run.remedy = None;
    end(run, RunState::Failed, out);
}

/// Takes all tasks of a run out of the queue.
pub(crate) fn purge_all(run: &Run, out: &mut Commands) {
    for stage in Stage::QUEUED {
        let run = run.spec.name.clone();
        out.push(Command::Purge { stage, filter: tasks_of_run(stage, &run), run });
    }
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
