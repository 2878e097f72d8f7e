//! Paused runs continue.

use millrace_schemas::TaskKey;
use millrace_schemas::api::RunState;
use millrace_schemas::notice::Notice;

use crate::fold::command::{Command, Commands};
use crate::fold::intake::exhausted;
use crate::fold::outstanding;
use crate::fold::stages::train_shard;
use crate::fold::state::{ExhaustedStep, Failures, Run};

/// Resumes a paused run. A step that could not be done is retried, and one whose files are gone is made
/// again.
pub(crate) fn resume(run: &mut Run, out: &mut Commands) {
    if run.state != RunState::Paused {
        return;
    }
    let reason = run.reason.as_deref().unwrap_or_default();
    match run.broken.take() {
        Some(key) if exhausted::misses_files(key, reason) => train_shard::remake(run, out),
        None if run.exhausted.restart.is_none() => {}
        Some(_) | None => train_shard::retry(run, out),
    }
    continue_run(run, out);
}

/// A dead letter is requeued: the run that it paused continues.
pub(crate) fn requeued(run: &mut Run, key: TaskKey, out: &mut Commands) {
    if run.exhausted.restart.is_some_and(|(exhausted, _)| exhausted == key) {
        // A person requeued it before the back-off ended.
        run.exhausted.restart = None;
    }
    if run.broken != Some(key) {
        return;
    }
    run.broken = None;
    train_shard::requeued(run, out);
    continue_run(run, out);
}

fn continue_run(run: &mut Run, out: &mut Commands) {
    (run.reason, run.remedy) = (None, None);
    run.ended_unix_ms = 0;
    (run.failures, run.exhausted) = (Failures::default(), ExhaustedStep::default());
    run.moved();
    run.state = match &run.policy {
        None => RunState::Starting,
        Some(policy) if policy.version.0 >= run.spec.steps => RunState::Finishing,
        Some(_) => RunState::Running,
    };
    out.push(Command::Notice(Box::new(Notice::Resumed { run: run.spec.name.clone() })));
    outstanding::of_run(run, out);
}
