//! Which tasks a rollout waits for.

use millrace_schemas::{RolloutId, Task, TaskKey};

use crate::fold::command::{Command, Commands};
use crate::fold::context::TaskContext;
use crate::fold::rollout::{Group, Phase, Rollout};
use crate::fold::stages::{env_step, generate, reward};
use crate::fold::state::Run;

/// The tasks that a rollout waits for.
pub fn describe(context: &TaskContext<'_>, rollout: &Rollout, put: &mut impl FnMut(Task)) {
    match rollout.phase {
        Phase::Reset | Phase::EnvStep => put(env_step::task(context, rollout)),
        Phase::Generate => generate::task(context, rollout).into_iter().for_each(put),
        Phase::Calls => {
            generate::tasks_of_calls(context, rollout, put);
            env_step::tasks_of_calls(context, rollout, put);
        }
        Phase::Reward => reward::tasks(context, rollout, put),
        Phase::Finished => {}
    }
}

/// How many calls and steps there are of calls side by side.
pub(crate) fn made(rollout: &Rollout) -> (u32, u32) {
    rollout.calls.as_deref().map_or((0, 0), |calls| (calls.made, calls.stepped))
}

/// Whether this task of a rollout was not there when it had so many calls and steps.
pub(crate) fn is_new(rollout: &Rollout, (made, stepped): (u32, u32), key: TaskKey) -> bool {
    let Some(calls) = rollout.calls.as_deref() else { return true };
    match key {
        TaskKey::EnvStep { turn, .. } => turn > stepped,
        TaskKey::Generate { turn, .. } => {
            calls.made > made && calls.open.last().is_some_and(|newest| newest.number == turn)
        }
        _ => true,
    }
}

/// Queues the tasks that a rollout waits for.
pub(crate) fn put(context: &TaskContext<'_>, rollout: &Rollout, out: &mut Commands) {
    describe(context, rollout, &mut |task| out.push(Command::PutTask(Box::new(task))));
}

/// Queues the tasks that the rollout of this id waits for.
pub(crate) fn put_rollout(run: &Run, id: RolloutId, out: &mut Commands) {
    let Some(group) = run.group(id.group) else { return };
    let Some(rollout) = group.rollouts.get(id.index as usize) else { return };
    put(&TaskContext::of(run, group, id), rollout, out);
}

/// Queues the tasks that a group waits for.
pub fn put_group(run: &Run, id: u64, group: &Group, out: &mut Commands) {
    for (rollout, index) in group.rollouts.iter().zip(0..) {
        let id = RolloutId { group: id, index, attempt: rollout.attempt };
        put(&TaskContext::of(run, group, id), rollout, out);
    }
}

/// Whether a rollout in this phase waits for a task of this key.
pub(crate) fn phase_awaits(rollout: &Rollout, key: TaskKey) -> bool {
    let turns = rollout.turns.len() as u32;
    match (key, rollout.phase) {
        (TaskKey::EnvStep { turn, .. }, Phase::Reset) => turn == 0,
        (TaskKey::EnvStep { turn, .. }, Phase::EnvStep) => turn == turns,
        (TaskKey::Generate { turn, .. }, Phase::Generate) => turn == turns + 1,
        (TaskKey::EnvStep { turn: step, .. }, Phase::Calls) => {
            rollout.calls.as_deref().is_some_and(|calls| calls.steps.contains_key(&step))
        }
        (TaskKey::Generate { turn: call, .. }, Phase::Calls) => {
            rollout.calls.as_deref().is_some_and(|calls| calls.open(call).is_some())
        }
        (TaskKey::Reward { reward, .. }, Phase::Reward) => {
            rollout.scores.get(reward as usize).is_some_and(Option::is_none)
        }
        _ => false,
    }
}

/// Whether a rollout of the run waits for this task.
pub(crate) fn is_awaited(run: &Run, key: TaskKey) -> bool {
    let Some(id) = key.rollout() else { return false };
    let Some(group) = run.group(id.group) else { return false };
    let rollout = group.rollouts.get(id.index as usize);
    rollout.is_some_and(|rollout| rollout.attempt == id.attempt && phase_awaits(rollout, key))
}

/// The task of this key, if its request fingerprint differs from the outcome's. A lost part of the
/// log then queued another task under the same key, and that task kept this one out of the queue.
pub(crate) fn mismatched_request(
    context: &TaskContext<'_>,
    rollout: &Rollout,
    key: TaskKey,
    request_fingerprint: Option<u64>,
) -> Option<Task> {
    let request_fingerprint = request_fingerprint?;
    let mut awaited = None;
    describe(context, rollout, &mut |task| {
        if task.key == key {
            awaited = Some(task);
        }
    });
    awaited.filter(|task| task.request_fingerprint() != request_fingerprint)
}
