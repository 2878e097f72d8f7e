//! Failed tasks of rollouts: the rollout restarts, or its group is given up.

use millrace_schemas::limits::{FAILURES_BETWEEN_STEPS, FAILURES_IN_A_ROW};
use millrace_schemas::{RolloutId, TaskKey};

use crate::fold::books::DropReason;
use crate::fold::command::Commands;
use crate::fold::intake::held_out;
use crate::fold::rollout::Phase;
use crate::fold::state::{Failures, Run};
use crate::fold::{groups, lifecycle};

/// Restarts the rollout, or gives it up with its group after too many failures.
pub(crate) fn failed(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    let Some(id) = key.rollout() else { return };
    let most = run.spec.rollout.max_replacements;
    let Some((group, evaluate)) = run.group_mut(id.group) else { return };
    let Some(rollout) = group.rollouts.get_mut(id.index as usize) else { return };
    if rollout.attempt != id.attempt || rollout.phase == Phase::Finished {
        return;
    }
    rollout.failures += 1;
    let given_up = rollout.failures > most;
    lifecycle::notify_dead_letter(run, key, reason, out);
    match (given_up, evaluate) {
        (false, _) => groups::restart(run, id, DropReason::Failed, out),
        (true, true) => held_out::failed(run, id.group, reason),
        (true, false) => drop_group(run, id),
    }
    if !evaluate {
        run.failures.in_a_row += 1;
        run.failures.since_step += 1;
        pause_if_only_failing(run, key, reason, out);
    }
}

/// Losses of a held-out rollout after which its prompt is given up. No batch is cut during an
/// evaluation, so an evaluation that only loses its rollouts must end all the same.
pub const MAX_HELD_OUT_LOSSES: u32 = 16;

/// Restarts a rollout whose environment is gone with its worker. That says nothing of the rollout, so
/// its replacements are not used up; a run that mostly loses rollouts is paused all the same. A
/// held-out prompt is given up after [`MAX_HELD_OUT_LOSSES`].
pub(crate) fn lost(run: &mut Run, id: RolloutId, key: TaskKey, reason: &str, out: &mut Commands) {
    let Some((group, evaluate)) = run.group_mut(id.group) else { return };
    let Some(rollout) = group.rollouts.get(id.index as usize) else { return };
    // Every other replacement of a held-out rollout follows a loss: its version stays the newest.
    let losses = 1 + rollout.attempt.saturating_sub(rollout.failures);
    if evaluate && losses >= MAX_HELD_OUT_LOSSES {
        return held_out::failed(run, id.group, &format!("lost {losses} times; the last: {reason}"));
    }
    groups::restart(run, id, DropReason::Lost, out);
    if !evaluate {
        run.failures.since_step += 1;
        pause_if_only_failing(run, key, reason, out);
    }
}

fn drop_group(run: &mut Run, failed: RolloutId) {
    groups::remove(run, failed.group, |index| {
        if index == failed.index { DropReason::Failed } else { DropReason::GroupFailed }
    });
}

/// Pauses a run whose rollouts only fail. A person has to remove the cause.
fn pause_if_only_failing(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    let (least, most) = FAILURES_IN_A_ROW;
    let rollouts = run.spec.window_groups().saturating_mul(run.spec.rollout.group_size.into());
    let in_a_row = rollouts.clamp(least, most);
    let Failures { in_a_row: failed, since_step } = run.failures;
    let finding = if failed >= in_a_row {
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
        lifecycle::pause(run, &format!("{finding}; the last: task {key} failed: {reason}"), &remedy, out);
    }
}
