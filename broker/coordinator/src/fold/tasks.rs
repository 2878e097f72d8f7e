//! Which tasks a rollout waits for.

use millrace_schemas::{RolloutId, Task, TaskKey};

use crate::fold::command::{Command, Commands};
use crate::fold::context::TaskContext;
use crate::fold::rollout::{Group, Phase, Rollout};
use crate::fold::stages::{env_step, generate, reward};
use crate::fold::state::Run;

/// Keys of the tasks that the rollout of this id waits for.
fn keys(rollout: &Rollout, id: RolloutId) -> impl Iterator<Item = TaskKey> {
    let turns = rollout.turns.len() as u32;
    let one = match rollout.phase {
        Phase::Reset | Phase::EnvStep => Some(TaskKey::EnvStep { rollout: id, turn: turns }),
        Phase::Generate => Some(TaskKey::Generate { rollout: id, turn: turns + 1 }),
        Phase::Calls | Phase::Reward | Phase::Finished => None,
    };
    // Generating first: its task may include the observation that has just come.
    let calls = || rollout.calls.as_deref().into_iter();
    let open = calls().flat_map(|calls| &calls.open);
    let open = open.map(move |open| TaskKey::Generate { rollout: id, turn: open.number });
    let steps = calls().flat_map(|calls| calls.steps.keys());
    let steps = steps.map(move |step| TaskKey::EnvStep { rollout: id, turn: *step });
    let scores = if rollout.phase == Phase::Reward { rollout.scores.as_slice() } else { &[] };
    let unscored = (0..).zip(scores).filter(|(_, score)| score.is_none());
    let rewards = unscored.map(move |(reward, _)| TaskKey::Reward { rollout: id, reward });
    one.into_iter().chain(open).chain(steps).chain(rewards)
}

/// The tasks that a rollout waits for, of the keys that are wanted.
pub fn describe(
    context: &TaskContext<'_>,
    rollout: &Rollout,
    wanted: impl Fn(TaskKey) -> bool,
    put: impl FnMut(Task),
) {
    let keys = keys(rollout, context.id).filter(|key| wanted(*key));
    let task = |key| match key {
        TaskKey::EnvStep { turn, .. } => Some(env_step::task(context, rollout, turn)),
        TaskKey::Generate { turn, .. } => generate::task(context, rollout, turn),
        TaskKey::Reward { reward, .. } => reward::task(context, rollout, reward),
        TaskKey::TrainShard { .. } | TaskKey::PublishWeights { .. } => None,
    };
    keys.filter_map(task).for_each(put);
}

/// How many calls and steps there are of calls side by side.
pub(crate) fn made(rollout: &Rollout) -> (u32, u32) {
    rollout.calls.as_deref().map_or((0, 0), |calls| (calls.made(), calls.stepped))
}

/// Whether this task of a rollout was not there when it had so many calls and steps.
pub(crate) fn is_new(rollout: &Rollout, (made, stepped): (u32, u32), key: TaskKey) -> bool {
    let Some(calls) = rollout.calls.as_deref() else { return true };
    match key {
        TaskKey::EnvStep { turn, .. } => turn > stepped,
        TaskKey::Generate { turn, .. } => {
            calls.made() > made && calls.open.last().is_some_and(|newest| newest.number == turn)
        }
        _ => true,
    }
}

/// Queues the tasks that a rollout waits for.
pub(crate) fn put(context: &TaskContext<'_>, rollout: &Rollout, out: &mut Commands) {
    describe(context, rollout, |_| true, |task| out.push(Command::PutTask(Box::new(task))));
}

/// Queues the task of this key if a rollout waits for it.
pub(crate) fn put_again(run: &Run, id: RolloutId, key: TaskKey, out: &mut Commands) {
    let Some(group) = run.group(id.group) else { return };
    let Some(rollout) = group.rollouts.get(id.index as usize) else { return };
    let put = |task| out.push(Command::PutTask(Box::new(task)));
    describe(&TaskContext::of(run, group, id), rollout, |awaited| awaited == key, put);
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

/// Whether a rollout waits for a task of this key, if it is of this rollout.
pub(crate) fn phase_awaits(rollout: &Rollout, key: TaskKey) -> bool {
    key.rollout().is_some_and(|id| keys(rollout, id).any(|awaited| awaited == key))
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
    describe(context, rollout, |described| described == key, |task| awaited = Some(task));
    awaited.filter(|task| task.request_fingerprint() != request_fingerprint)
}
