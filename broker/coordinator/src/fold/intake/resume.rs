//! A paused run goes on.

use millrace_schemas::TaskKey;
use millrace_schemas::api::RunState;
use millrace_schemas::notice::Notice;

use crate::fold::command::{Command, Commands};
use crate::fold::outstanding;
use crate::fold::stages::train_shard;
use crate::fold::state::{Failures, Run, Worn};

/// A paused run goes on. A step that could not be done is retried.
pub(crate) fn resume(run: &mut Run, out: &mut Commands) {
    if run.state != RunState::Paused {
        return;
    }
    if run.broken.take().is_some() || run.worn.again.is_some() {
        train_shard::retry(run, out);
    }
    go_on(run, out);
}

/// A dead letter is requeued: the run that it had paused goes on.
pub(crate) fn requeued(run: &mut Run, key: TaskKey, out: &mut Commands) {
    if run.worn.again.is_some_and(|(worn, _)| worn == key) {
        // A person was faster.
        run.worn.again = None;
    }
    if run.broken != Some(key) {
        return;
    }
    run.broken = None;
    train_shard::requeued(run, out);
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
}
