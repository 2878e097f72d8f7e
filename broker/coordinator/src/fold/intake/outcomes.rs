//! Applies outcomes and dead letters of a run's tasks.

use millrace_schemas::limits::MAX_BUSY_US;
use millrace_schemas::outcome::{MalformedOutcome, Returned};
use millrace_schemas::{Outcome, OutcomeBody, TaskKey};

use crate::fold::command::{Command, Commands};
use crate::fold::context::Refused;
use crate::fold::intake::awaited::is_awaited;
use crate::fold::intake::{exhausted, failures, rollouts};
use crate::fold::stages::{publish_weights, train_shard};
use crate::fold::state::Run;
use crate::fold::{lifecycle, tasks};

/// The first outcome of an awaited task changes the run. Any other is counted as late and ignored.
pub(crate) fn outcome(run: &mut Run, seq: u64, outcome: Outcome, out: &mut Commands) {
    let late = run.books.late_outcomes;
    take_in(run, seq, outcome, out);
    if run.books.late_outcomes == late {
        run.moved();
    }
}

fn take_in(run: &mut Run, seq: u64, outcome: Outcome, out: &mut Commands) {
    let malformed = outcome.check().err();
    let Outcome { key, busy_us, request_fingerprint, body, .. } = outcome;
    // The bound keeps the sum from overflowing, whatever a worker reports.
    let busy_us = busy_us.min(MAX_BUSY_US);
    let busy = run.books.busy_us.entry(key.stage()).or_default();
    *busy = busy.saturating_add(busy_us);
    if run.is_closed() {
        run.books.late_outcomes += 1;
        return;
    }
    if let Some(malformed) = malformed {
        return malformed_outcome(run, key, &malformed, out);
    }
    match (key, body) {
        (key, OutcomeBody::Returned(undone)) => returned(run, key, (seq, &undone), out),
        (TaskKey::TrainShard { .. }, OutcomeBody::TrainShard(done)) => {
            train_shard::done(run, key, request_fingerprint, done, out);
        }
        (TaskKey::PublishWeights { .. }, OutcomeBody::PublishWeights(done)) => {
            publish_weights::done(run, key, request_fingerprint, &done, out);
        }
        (TaskKey::TrainShard { .. }, OutcomeBody::Void(void)) => {
            train_shard::void(run, key, &void, out);
        }
        (TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. }, _) => run.books.late_outcomes += 1,
        (TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. }, body) => {
            rollouts::outcome(run, key, (seq, busy_us, request_fingerprint), body, out);
        }
    }
}

/// A worker returned the task, which removed it from the queue: it is requeued, with what there is
/// of it.
fn returned(run: &mut Run, key: TaskKey, (seq, returned): (u64, &Returned), out: &mut Commands) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    run.books.returned += 1;
    if let Some(part) = returned.part()
        && let Err(Refused(reason)) = rollouts::begun(run, key, (seq, &part))
    {
        return failures::failed(run, key, &reason, out);
    }
    if let Some(id) = key.rollout() {
        return tasks::put_again(run, id, key, out);
    }
    let mut all = Commands::new();
    train_shard::put(run, &mut all);
    all.retain(|command| matches!(command, Command::PutTask(task) if task.key == key));
    out.append(&mut all);
}

/// A malformed outcome counts as a dead letter if the task is awaited.
fn malformed_outcome(run: &mut Run, key: TaskKey, malformed: &MalformedOutcome, out: &mut Commands) {
    if !is_awaited(run, key) {
        run.books.late_outcomes += 1;
        return;
    }
    run.books.refused_outcomes += 1;
    dead_letter(run, key, &format!("its outcome is refused: {malformed}"), false, out);
}

/// A rollout restarts, or its group is dropped. A step that exhausted its deliveries restarts after
/// a back-off. A step that a worker cannot do pauses the run.
pub(crate) fn dead_letter(run: &mut Run, key: TaskKey, reason: &str, exhausted: bool, out: &mut Commands) {
    if run.is_closed() {
        return;
    }
    match key {
        TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => {
            rollouts::dead_letter(run, key, reason, out);
        }
        TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. } => {
            if !is_awaited(run, key) {
                return;
            }
            run.moved();
            if exhausted {
                exhausted::step_exhausted(run, key, reason, out);
            } else {
                lifecycle::halt(run, key, reason, out);
            }
        }
    }
}
