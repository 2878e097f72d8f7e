//! How a run stops: paused by request or for a task that cannot be done, cancelled, finished, or
//! quarantined.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_schemas::TaskKey;
use millrace_schemas::api::RunState;
use millrace_schemas::limits::MAX_REASON_BYTES;
use millrace_schemas::notice::Notice;
use millrace_schemas::text::cut;

use crate::fold::books::DropReason;
use crate::fold::command::{Command, Commands};
use crate::fold::gang::Gang;
use crate::fold::state::Run;
use crate::fold::{groups, purge, status};

/// Changes one run. A panic, from a defect of the fold or a log that another version wrote, closes
/// that run alone.
pub(crate) fn guarded(run: &mut Run, out: &mut Commands, then: impl FnOnce(&mut Run, &mut Commands)) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| then(run, out))) {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
        quarantine(run, message.unwrap_or("a panic without a message"), out);
    }
}

/// Closes a run that cannot be folded; all others continue. The state that it is left in is never
/// read.
fn quarantine(run: &mut Run, reason: &str, out: &mut Commands) {
    run.groups.clear();
    run.broken = None;
    let lost = run.books.admitted.saturating_sub(run.books.trained + run.books.dropped.values().sum::<u64>());
    *run.books.dropped.entry(DropReason::Cancelled).or_default() += lost;
    run.reason = Some(format!("the run cannot be folded: {}", cut(reason, MAX_REASON_BYTES)));
    run.remedy = None;
    end(run, RunState::Failed, out);
}

/// Ends a run by request: what is in flight is dropped.
pub(crate) fn cancel(run: &mut Run, reason: &str, out: &mut Commands) {
    if run.is_closed() {
        return;
    }
    run.reason = Some(cut(reason, MAX_REASON_BYTES).to_owned());
    (run.broken, run.remedy) = (None, None);
    run.evaluation = None;
    // Groups in training are dropped with the others.
    run.groups.extend(run.training.take().map(|training| training.groups).unwrap_or_default());
    groups::drop_all(run, DropReason::Cancelled);
    end(run, RunState::Cancelled, out);
}

/// Pauses a run because `key` cannot be done.
pub(crate) fn halt(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    run.broken = Some(key);
    notify_dead_letter(run, key, reason, out);
    let name = &run.spec.name;
    let remedy = format!("repair what the reason names, then `millrace resume {name}`");
    pause(run, &format!("task {key} failed: {reason}"), &remedy, out);
}

/// Publishes a notice of a task that became a dead letter.
pub(crate) fn notify_dead_letter(run: &Run, key: TaskKey, reason: &str, out: &mut Commands) {
    let notice = Notice::DeadLetter { run: run.spec.name.clone(), task: key, reason: reason.to_owned() };
    out.push(Command::Notice(Box::new(notice)));
}

/// Stops a run until it is resumed. Nothing is dropped. Its queued tasks are purged, so that
/// workers are free for other runs. Outcomes of tasks in flight still change it, and the tasks that
/// follow from them are queued when the run is resumed.
pub(crate) fn pause(run: &mut Run, reason: &str, remedy: &str, out: &mut Commands) {
    if run.state.is_over() {
        return;
    }
    let short = |text: &str| cut(text, MAX_REASON_BYTES).to_owned();
    let (reason, remedy) = (short(reason), short(remedy));
    run.state = RunState::Paused;
    purge::all(run, out);
    let notice =
        Notice::Paused { run: run.spec.name.clone(), reason: reason.clone(), remedy: remedy.clone() };
    (run.reason, run.remedy) = (Some(reason), Some(remedy));
    out.push(Command::Notice(Box::new(notice)));
}

/// Removes the tasks of a run that is paused or over: events still change such a run, but none of
/// its tasks is queued.
pub(crate) fn hold_back(run: &Run, out: &mut Commands) {
    if !run.state.works() {
        out.retain(|command| !matches!(command, Command::PutTask(task) if task.run == run.spec.name));
    }
}

/// Ends a run in `state`.
pub(crate) fn end(run: &mut Run, state: RunState, out: &mut Commands) {
    run.state = state;
    forget(run);
    if let Some(policy) = run.policy.as_mut() {
        policy.ended = true;
        out.push(Command::SetPolicy { run: run.spec.name.clone(), policy: policy.clone() });
    }
    purge::all(run, out);
    out.push(Command::Notice(Box::new(Notice::Ended {
        run: run.spec.name.clone(),
        state: run.state.name().to_owned(),
        version: run.version(),
        ledger: status::ledger(run),
    })));
}

/// Drops everything of a run that is over and grows with its length, except its books.
fn forget(run: &mut Run) {
    run.ready = Vec::new();
    run.training = None;
    run.evaluation = None;
    run.evaluated.clear();
    run.gang = Gang { generations: run.gang.generations, ..Gang::default() };
    run.stored.forget();
    run.books.dropped_lately.clear();
}

/// Records the log's time in a run when it ends.
pub(crate) const fn stamp_end(run: &mut Run) {
    if run.state.is_over() && run.ended_unix_ms == 0 {
        run.ended_unix_ms = run.now_unix_ms();
    }
}
