//! A step whose task used up its deliveries without a worker's verdict: its workers were killed, or the store was
//! unreachable for longer than deliveries last. Nothing is wrong with the step, so it restarts after a back-off. Only a
//! step that wears out several times in a row waits for a person.

use millrace_schemas::TaskKey;
use millrace_schemas::limits::{MAX_STEP_LETTERS, STEP_BACKOFF_MS};

use crate::fold::command::Commands;
use crate::fold::intake::awaited::is_awaited;
use crate::fold::lifecycle;
use crate::fold::stages::train_shard;
use crate::fold::state::{Run, Worn};

/// Takes in such a dead letter of a task that is waited for.
pub(crate) fn wear_out(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    // Another rank's letter of the same attempt: the restart is due already.
    if run.worn.again.is_some() {
        return;
    }
    run.worn.in_a_row += 1;
    if run.worn.in_a_row >= MAX_STEP_LETTERS {
        let tries = run.worn.in_a_row;
        lifecycle::halt(run, key, &format!("{reason}, {tries} tries in a row"), out);
        return;
    }
    let (first, most) = STEP_BACKOFF_MS;
    let wait = (first << (run.worn.in_a_row - 1)).min(most);
    run.worn.again = Some((key, run.at_ms.saturating_add(wait)));
    lifecycle::tell_dead_letter(run, key, &format!("{reason}; the step restarts in {wait} ms"), out);
}

/// Restarts the step once its time has come, unless its task was done in the meantime.
pub(crate) fn restart_if_due(run: &mut Run, out: &mut Commands) {
    let Worn { again: Some((key, due_ms)), .. } = run.worn else { return };
    if due_ms > run.at_ms || !run.state.works() {
        return;
    }
    run.worn.again = None;
    if is_awaited(run, key) {
        train_shard::retry(run, out);
        train_shard::put(run, out);
    }
}
