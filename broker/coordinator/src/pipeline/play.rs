//! A rollout is played: reset, then turn after turn, then scored. Each stage's file says how it takes an
//! outcome in and what its task looks like; this one finds the rollout and goes on to the next.

use millrace_schemas::submit::Domain;
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, RunSpec, Task, TaskKey};

use crate::books::DropReason;
use crate::command::{Command, Commands};
use crate::pipeline::{admit, env_step, evaluate, finish, generate, reward};
use crate::rollout::{Group, Phase, Rollout};
use crate::state::Run;
use crate::window;

/// What a rollout's tasks need to know besides the rollout.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// The run file.
    pub spec: &'a RunSpec,
    /// The newest committed version.
    pub version: PolicyVersion,
    /// Whether the rollout is for evaluation.
    pub evaluate: bool,
    /// Divides the logits if it is.
    pub evaluate_temperature: f64,
    /// The rollout.
    pub id: RolloutId,
    /// Its domain.
    pub domain: Domain<'a>,
    /// The prompt's number within its domain and split.
    pub prompt: u64,
}

/// An outcome that cannot be taken in: the rollout fails, as if nobody could do the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused(pub String);

/// The tasks that a rollout waits for.
pub fn tasks(scene: &Scene<'_>, rollout: &Rollout, put: &mut impl FnMut(Task)) {
    match rollout.phase {
        Phase::Reset | Phase::EnvStep => put(env_step::task(scene, rollout)),
        Phase::Generate => put(generate::task(scene, rollout)),
        Phase::Reward => reward::tasks(scene, rollout, put),
        Phase::Finished => {}
    }
}

fn is_awaited(rollout: &Rollout, key: TaskKey) -> bool {
    let turns = rollout.turns.len() as u32;
    match (key, rollout.phase) {
        (TaskKey::EnvStep { turn, .. }, Phase::Reset) => turn == 0,
        (TaskKey::EnvStep { turn, .. }, Phase::EnvStep) => turn == turns,
        (TaskKey::Generate { turn, .. }, Phase::Generate) => turn == turns + 1,
        (TaskKey::Reward { reward, .. }, Phase::Reward) => {
            rollout.scores.get(reward as usize).is_some_and(Option::is_none)
        }
        _ => false,
    }
}

/// Whether a rollout waits for this task.
pub(super) fn awaits(run: &Run, key: TaskKey) -> bool {
    let Some(id) = key.rollout() else { return false };
    let Some(group) = run.group(id.group) else { return false };
    let rollout = group.rollouts.get(id.index as usize);
    rollout.is_some_and(|rollout| rollout.attempt == id.attempt && is_awaited(rollout, key))
}

/// Puts the tasks that a rollout waits for.
pub(super) fn put_rollout(run: &Run, id: RolloutId, out: &mut Commands) {
    let evaluate =
        run.evaluation.as_ref().is_some_and(|evaluation| evaluation.groups.contains_key(&id.group));
    let Some(group) = run.group(id.group) else { return };
    let Some(rollout) = group.rollouts.get(id.index as usize) else { return };
    let (spec, version, prompt) = (&run.spec, run.version(), group.prompt);
    let (evaluate_temperature, _) = run.evaluate_pass();
    let domain = spec.part(group.domain);
    let scene = Scene { spec, version, evaluate, evaluate_temperature, id, domain, prompt };
    tasks(&scene, rollout, &mut |task| out.push(Command::PutTask(Box::new(task))));
}

/// Takes the outcome of a rollout's task in and puts what comes next.
pub(super) fn on_outcome(
    run: &mut Run,
    key: TaskKey,
    (seq, busy_us, answers): (u64, u64, Option<u64>),
    body: OutcomeBody,
    out: &mut Commands,
) {
    let Some(id) = key.rollout() else { return };
    evaluate::prompt_shown(run, key, &body);
    let (body, mut latest) = body.into_brief();
    let (version, floor) = (run.version(), floor_of(run, id.group, first_version(&body)));
    let (evaluate_temperature, _) = run.evaluate_pass();
    // Borrowed beside the groups, so that no task needs a copy of the run file.
    let Run { spec, groups, evaluation, books, .. } = run;
    let evaluating = evaluation.as_mut().and_then(|evaluation| evaluation.groups.get_mut(&id.group));
    let evaluate = evaluating.is_some();
    let found = evaluating.or_else(|| groups.get_mut(&id.group));
    let Some((domain, prompt, rollout)) = found.and_then(|group| {
        let rollout = group.rollouts.get_mut(id.index as usize)?;
        let awaited = rollout.attempt == id.attempt && is_awaited(rollout, key);
        awaited.then_some((group.domain, group.prompt, rollout))
    }) else {
        books.late_outcomes += 1;
        return;
    };
    let scene =
        Scene { spec, version, evaluate, evaluate_temperature, id, domain: spec.part(domain), prompt };
    if let Some(again) = asked_otherwise(&scene, rollout, key, answers) {
        books.late_outcomes += 1;
        out.push(Command::PutTask(Box::new(again)));
        return;
    }
    rollout.busy_us = rollout.busy_us.saturating_add(busy_us);
    if first_version(&body).is_some_and(|first| first < floor) {
        // A turn that an old version had in hand when the floor rose. It needs a new name: within the
        // server's window the log would take the second outcome of this one for a repetition.
        return replace(run, id, DropReason::Stale, out);
    }
    let taken = match (key, body) {
        (TaskKey::Generate { .. }, OutcomeBody::TurnBrief(turn)) => {
            if !evaluate {
                books.sampled_tokens += u64::from(turn.tokens);
                books.turns += 1;
                books.prefill_tokens += u64::from(turn.prefill_tokens);
                books.cached_tokens += u64::from(turn.cached_tokens);
            }
            generate::done(rollout, &scene, floor..=version, (seq, turn))
        }
        (TaskKey::EnvStep { .. }, OutcomeBody::StepBrief(step)) => {
            env_step::done(rollout, &scene, (seq, &step))
        }
        (TaskKey::Reward { reward, .. }, OutcomeBody::Reward(done)) => {
            let environment = scene.domain.environment;
            reward::done(rollout, environment, reward as usize, done.score)
        }
        (_, body) => Err(Refused(format!("outcome of another stage: {body:?}"))),
    };
    if let Err(Refused(reason)) = taken {
        return on_failure(run, key, &reason, out);
    }
    if rollout.phase == Phase::Finished {
        return finished(run, id, evaluate, out);
    }
    // A reward's outcome that leaves others waiting puts nothing: those are queued already.
    if !(matches!(key, TaskKey::Reward { .. })) {
        tasks(&scene, rollout, &mut |mut task| {
            task.carry(std::mem::take(&mut latest));
            out.push(Command::PutTask(Box::new(task)));
        });
    }
}

/// The version that sampled a turn's first token.
fn first_version(body: &OutcomeBody) -> Option<PolicyVersion> {
    match body {
        OutcomeBody::TurnBrief(turn) => turn.segments.first().map(|segment| segment.version),
        OutcomeBody::Generate(_)
        | OutcomeBody::EnvStep(_)
        | OutcomeBody::StepBrief(_)
        | OutcomeBody::Reward(_)
        | OutcomeBody::TrainShard(_)
        | OutcomeBody::Void(_)
        | OutcomeBody::PublishWeights(_)
        | OutcomeBody::Returned(_) => None,
    }
}

/// The oldest version that may have sampled a token of the group, where `first` is about to join it. A worker that is
/// behind may make a group as old as the bound after a batch's places for such groups are taken.
fn floor_of(run: &Run, group: u64, first: Option<PolicyVersion>) -> PolicyVersion {
    if run.evaluation.as_ref().is_some_and(|evaluation| evaluation.groups.contains_key(&group)) {
        return run.version();
    }
    let floor = window::floor(&run.spec, run.version());
    let has_no_place = first == Some(floor) && floor < run.version() && admit::may_not_be_oldest(run, group);
    if has_no_place { floor.next() } else { floor }
}

/// The task of this name, if what it asks is not what was answered: the answer is to a task that a lost part of
/// the log had put under the same name, and that stood in the way of this one.
fn asked_otherwise(scene: &Scene<'_>, rollout: &Rollout, key: TaskKey, answers: Option<u64>) -> Option<Task> {
    let answers = answers?;
    let mut asked = None;
    tasks(scene, rollout, &mut |task| {
        if task.key == key {
            asked = Some(task);
        }
    });
    asked.filter(|task| task.question() != answers)
}

fn finished(run: &mut Run, id: RolloutId, evaluate: bool, out: &mut Commands) {
    if !evaluate {
        run.failures.in_a_row = 0;
    }
    let Some((group, _)) = run.group_mut(id.group) else { return };
    group.playing -= 1;
    if group.playing > 0 {
        return;
    }
    if evaluate {
        evaluate::prompt_finished(run, id.group, out);
    } else {
        admit::group_finished(run, id.group, out);
    }
}

/// A task that nobody can do. The first entry of the log about a task wins: a letter of one that has an outcome changes
/// nothing.
pub(super) fn on_dead_letter(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    if awaits(run, key) {
        run.moved();
        on_failure(run, key, reason, out);
    }
}

/// The task cannot be done: the rollout is replaced, or given up with its group after too many tries.
fn on_failure(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    let Some(id) = key.rollout() else { return };
    let most = run.spec.rollout.max_replacements;
    let name = run.spec.name.clone();
    let Some((group, evaluate)) = run.group_mut(id.group) else { return };
    let Some(rollout) = group.rollouts.get_mut(id.index as usize) else { return };
    if rollout.attempt != id.attempt || rollout.phase == Phase::Finished {
        return;
    }
    let notice = millrace_schemas::notice::Notice::DeadLetter { run: name, task: key, reason: reason.into() };
    out.push(Command::Notice(Box::new(notice)));
    rollout.failures += 1;
    match (rollout.failures > most, evaluate) {
        (false, _) => replace(run, id, DropReason::Failed, out),
        (true, true) => evaluate::prompt_failed(run, id.group, reason, out),
        (true, false) => admit::drop_group(run, id, out),
    }
    if !evaluate {
        finish::pause_if_only_failing(run, key, reason, out);
    }
}

/// Books what the rollout was as dropped and begins it anew at the current version.
pub(super) fn replace(run: &mut Run, id: RolloutId, reason: DropReason, out: &mut Commands) {
    let version = run.version();
    let (evaluate_temperature, _) = run.evaluate_pass();
    let ready = run.ready.iter().position(|group| *group == id.group);
    let Run { spec, groups, evaluation, books, ready: ready_groups, .. } = run;
    let evaluating = evaluation.as_mut().and_then(|evaluation| evaluation.groups.get_mut(&id.group));
    let evaluate = evaluating.is_some();
    let Some(group) = evaluating.or_else(|| groups.get_mut(&id.group)) else { return };
    let Group { domain, prompt, start, rollouts, playing } = group;
    let (domain, prompt) = (*domain, *prompt);
    let Some(rollout) = rollouts.get_mut(id.index as usize) else { return };
    if !evaluate {
        let dropped = RolloutId { attempt: rollout.attempt, ..id };
        books.drop_rollout(dropped, domain, reason, rollout.busy_us);
        books.admit(domain, 1);
    }
    if rollout.phase == Phase::Finished {
        *playing += 1;
        if let Some(at) = ready {
            ready_groups.remove(at);
        }
    }
    rollout.replace(version, start.as_ref());
    let id = RolloutId { attempt: rollout.attempt, ..id };
    let scene =
        Scene { spec, version, evaluate, evaluate_temperature, id, domain: spec.part(domain), prompt };
    tasks(&scene, rollout, &mut |task| out.push(Command::PutTask(Box::new(task))));
}
