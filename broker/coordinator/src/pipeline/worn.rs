//! A step whose task was delivered too often, and nobody said that it cannot be done: its workers were killed, or the store was
//! away for longer than deliveries last. Nothing is wrong with the step, so it is begun anew after a while; only a step that
//! wears out again and again waits for a person.

use millrace_schemas::TaskKey;
use millrace_schemas::limits::{MAX_STEP_LETTERS, STEP_BACKOFF_MS};

use super::{finish, is_awaited, train_shard};
use crate::command::Commands;
use crate::state::{Run, Worn};

/// Takes in such a letter of a task that is waited for.
pub(super) fn wear_out(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    // Another rank's letter of the same try: the step is to be begun anew already.
    if run.worn.again.is_some() {
        return;
    }
    run.worn.in_a_row += 1;
    if run.worn.in_a_row >= MAX_STEP_LETTERS {
        let tries = run.worn.in_a_row;
        finish::halt(run, key, &format!("{reason}, {tries} tries in a row"), out);
        return;
    }
    let (first, most) = STEP_BACKOFF_MS;
    let wait = (first << (run.worn.in_a_row - 1)).min(most);
    run.worn.again = Some((key, run.at_ms.saturating_add(wait)));
    finish::tell_dead_letter(run, key, &format!("{reason}; the step is begun anew in {wait} ms"), out);
}

/// Begins the step anew once its time has come, unless its task was done all the same.
pub(super) fn begin_anew_if_due(run: &mut Run, out: &mut Commands) {
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
