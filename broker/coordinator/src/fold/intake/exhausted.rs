//! A step whose task used up its deliveries without an outcome: its workers were killed, or the
//! store was unreachable for longer than all deliveries together. The step itself may be sound, so
//! it restarts after a back-off. A step that exhausts its deliveries several times in a row waits
//! for a person. A commit that misses files of the step cannot succeed, so the step is made again.

use millrace_schemas::TaskKey;
use millrace_schemas::limits::{MAX_STEP_LETTERS, STEP_BACKOFF_MS};
use millrace_schemas::publish_weights::FILE_IS_MISSING;

use crate::fold::command::Commands;
use crate::fold::intake::awaited::is_awaited;
use crate::fold::lifecycle;
use crate::fold::stages::train_shard;
use crate::fold::state::{ExhaustedStep, Run};

/// Applies such a dead letter of an awaited task.
pub(crate) fn step_exhausted(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    // It is another rank's dead letter of the same attempt: the restart is scheduled already.
    if run.exhausted.restart.is_some() {
        return;
    }
    run.exhausted.in_a_row += 1;
    if run.exhausted.in_a_row >= MAX_STEP_LETTERS {
        let tries = run.exhausted.in_a_row;
        lifecycle::halt(run, key, &format!("{reason}, {tries} tries in a row"), out);
        return;
    }
    // The first time, another replica of the store may have had the files.
    if run.exhausted.in_a_row > 1 && misses_files(key, reason) {
        lifecycle::notify_dead_letter(run, key, &format!("{reason}; the step is made again"), out);
        train_shard::remake(run, out);
        train_shard::put(run, out);
        return;
    }
    let (first, most) = STEP_BACKOFF_MS;
    let wait = (first << (run.exhausted.in_a_row - 1)).min(most);
    run.exhausted.restart = Some((key, run.at_ms.saturating_add(wait)));
    lifecycle::notify_dead_letter(run, key, &format!("{reason}; the step restarts in {wait} ms"), out);
}

/// Whether the task is a commit, and failed because files of its step are missing.
pub(crate) fn misses_files(key: TaskKey, reason: &str) -> bool {
    matches!(key, TaskKey::PublishWeights { .. }) && reason.contains(FILE_IS_MISSING)
}

/// Restarts the step when its back-off has passed, unless its task was done in the meantime.
pub(crate) fn restart_if_due(run: &mut Run, out: &mut Commands) {
    let ExhaustedStep { restart: Some((key, due_ms)), .. } = run.exhausted else { return };
    if due_ms > run.at_ms || !run.state.works() {
        return;
    }
    run.exhausted.restart = None;
    if is_awaited(run, key) {
        train_shard::retry(run, out);
        train_shard::put(run, out);
    }
}
