//! Applies outcomes of rollouts' tasks. Each stage's file defines what its outcome changes; this
//! one finds the rollout and queues its next task.

use millrace_schemas::brief::TurnBrief;
use millrace_schemas::submit::GroupFilter;
use millrace_schemas::{OutcomeBody, PolicyVersion, RolloutId, TaskKey};

use crate::fold::books::DropReason;
use crate::fold::command::{Command, Commands};
use crate::fold::context::{Refused, TaskContext};
use crate::fold::intake::{failures, held_out};
use crate::fold::rollout::Phase;
use crate::fold::stages::{env_step, generate, reward};
use crate::fold::state::Run;
use crate::fold::{groups, staleness, tasks};

/// Batches' worth of groups without signal that may be filtered between two steps.
pub const MAX_FILTERED_BATCHES: u64 = 4;

/// Applies the outcome of a rollout's task and queues the rollout's next task.
pub(crate) fn outcome(
    run: &mut Run,
    key: TaskKey,
    (seq, busy_us, request_fingerprint): (u64, u64, Option<u64>),
    body: OutcomeBody,
    out: &mut Commands,
) {
    let Some(id) = key.rollout() else { return };
    held_out::shown(run, key, &body);
    let (body, mut latest) = body.into_brief();
    let (version, floor) = (run.version(), staleness::floor_of(run, id.group, first_version(&body)));
    let (evaluate_temperature, _) = run.evaluate_pass();
    // The run file is borrowed beside the groups, so that no task needs a copy of it.
    let Run { spec, groups, evaluation, books, .. } = run;
    let evaluating = evaluation.as_mut().and_then(|evaluation| evaluation.groups.get_mut(&id.group));
    let evaluate = evaluating.is_some();
    let found = evaluating.or_else(|| groups.get_mut(&id.group));
    let Some((domain, prompt, rollout)) = found.and_then(|group| {
        let rollout = group.rollouts.get_mut(id.index as usize)?;
        let awaited = rollout.attempt == id.attempt && tasks::phase_awaits(rollout, key);
        awaited.then_some((group.domain, group.prompt, rollout))
    }) else {
        books.late_outcomes += 1;
        return;
    };
    let domain = spec.part(domain);
    let context = TaskContext { spec, version, evaluate, evaluate_temperature, id, domain, prompt };
    if let Some(task) = tasks::mismatched_request(&context, rollout, key, request_fingerprint) {
        books.late_outcomes += 1;
        out.push(Command::PutTask(Box::new(task)));
        return;
    }
    rollout.busy_us = rollout.busy_us.saturating_add(busy_us);
    if first_version(&body).is_some_and(|first| first < floor) {
        // A worker of an old version had the turn in flight when the floor rose. It needs a new
        // name: within its deduplication window the server would discard a second outcome of this
        // one.
        return groups::restart(run, id, DropReason::Stale, out);
    }
    if let OutcomeBody::Lost(lost) = &body {
        return failures::lost(run, id, key, &lost.reason, out);
    }
    let made = tasks::made(rollout);
    let taken = match (key, body) {
        (TaskKey::Generate { turn: number, .. }, OutcomeBody::TurnBrief(turn)) => {
            if !evaluate {
                let counters = &mut books.counters;
                counters.sampled_tokens += u64::from(turn.tokens);
                counters.turns += 1;
                counters.prefill_tokens += u64::from(turn.prefill_tokens);
                counters.cached_tokens += u64::from(turn.cached_tokens);
            }
            generate::done(rollout, &context, (number, floor..=version), (seq, turn))
        }
        (TaskKey::EnvStep { turn, .. }, OutcomeBody::StepBrief(step)) => {
            env_step::done(rollout, &context, turn, (seq, &step))
        }
        (TaskKey::Reward { reward, .. }, OutcomeBody::Reward(done)) => {
            let environment = context.domain.environment;
            reward::done(rollout, environment, reward as usize, done.score)
        }
        (_, body) => Err(Refused(format!("outcome of another stage: {body:?}"))),
    };
    if let Err(Refused(reason)) = taken {
        return failures::failed(run, key, &reason, out);
    }
    if rollout.phase == Phase::Finished {
        return finished(run, id, evaluate);
    }
    // While other rewards are outstanding, a reward's outcome queues nothing: they are queued
    // already.
    if !(matches!(key, TaskKey::Reward { .. })) {
        let is_new = |key| tasks::is_new(rollout, made, key);
        tasks::describe(&context, rollout, is_new, |mut task| {
            task.carry(std::mem::take(&mut latest));
            out.push(Command::PutTask(Box::new(task)));
        });
    }
}

/// Keeps the part of an awaited turn that a leaving worker handed back.
///
/// # Errors
/// It could not be trained on.
pub(crate) fn begun(run: &mut Run, key: TaskKey, (seq, part): (u64, &TurnBrief)) -> Result<(), Refused> {
    let TaskKey::Generate { rollout: id, turn } = key else { return Ok(()) };
    let Some(group) = run.group(id.group) else { return Ok(()) };
    let context = TaskContext::of(run, group, id);
    let Some(rollout) = group.rollouts.get(id.index as usize) else { return Ok(()) };
    let Some(begun) = generate::begun(rollout, &context, turn, (seq, part))? else { return Ok(()) };
    if let Some((group, evaluate)) = run.group_mut(id.group)
        && let Some(rollout) = group.rollouts.get_mut(id.index as usize)
    {
        let place = rollout.begun_mut(turn);
        let known = place.replace(Box::new(begun)).map_or(0, |known| known.entry.tokens);
        if !evaluate {
            run.books.counters.handed_back_tokens += u64::from(part.tokens.saturating_sub(known));
        }
    }
    Ok(())
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
        | OutcomeBody::Lost(_)
        | OutcomeBody::PublishWeights(_)
        | OutcomeBody::Returned(_) => None,
    }
}

fn finished(run: &mut Run, id: RolloutId, evaluate: bool) {
    if !evaluate {
        run.failures.in_a_row = 0;
    }
    let Some((group, _)) = run.group_mut(id.group) else { return };
    group.playing -= 1;
    if group.playing > 0 {
        return;
    }
    if evaluate {
        held_out::finished(run, id.group);
    } else {
        group_finished(run, id.group);
    }
}

/// All rollouts of a group are scored: it is ready, or filtered.
fn group_finished(run: &mut Run, id: u64) {
    if let Some(group) = run.groups.get(&id) {
        run.stored.group_finished(&run.spec, group);
    }
    let most = MAX_FILTERED_BATCHES * u64::from(run.spec.rollout.groups_per_step);
    let leave_out = run.spec.rollout.filter == GroupFilter::EqualRewards
        && run.filtered_since_step < most
        && run.groups.get(&id).is_some_and(|group| group.is_without_signal(&run.spec));
    if leave_out {
        run.filtered_since_step += 1;
        groups::remove(run, id, |_| DropReason::Filtered);
    } else {
        run.ready.push(id);
    }
}

/// Applies a dead letter. The first entry of the log about a task wins: a dead letter of a task
/// that has an outcome changes nothing.
pub(crate) fn dead_letter(run: &mut Run, key: TaskKey, reason: &str, out: &mut Commands) {
    if tasks::is_awaited(run, key) {
        run.moved();
        failures::failed(run, key, reason, out);
    }
}
