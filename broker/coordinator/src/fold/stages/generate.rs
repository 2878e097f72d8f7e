//! After a sampled turn: the environment takes it as its action.

use millrace_schemas::brief::TurnBrief;
use millrace_schemas::env_step::TurnLimits;
use millrace_schemas::generate::{Finish, GenerateTask, Sampling, check_versions};
use millrace_schemas::reward::TurnResult;
use millrace_schemas::train_shard::BatchTurn;
use millrace_schemas::{EntryRef, Fork, PolicyVersion, Task, TaskBody, TaskKey, fork, partition};

use std::ops::RangeInclusive;

use crate::fold::calls::{Begun, OpenCall};
use crate::fold::context::{Refused, TaskContext};
use crate::fold::rollout::{Phase, Rollout};
use crate::fold::seeds::{Purpose, seed};

/// A turn that a rollout waits for.
struct Asked<'a> {
    /// Limits below those of the run.
    limits: &'a TurnLimits,
    /// The turn so far.
    begun: Option<&'a Begun>,
    /// The version of the newest token before it; `None` where it is the first.
    after: Option<PolicyVersion>,
}

/// The turn of this number, or of the call of this number; `None` if the rollout does not wait for it.
fn asked(rollout: &Rollout, number: u32) -> Option<Asked<'_>> {
    let Some(calls) = rollout.calls.as_deref() else {
        let (limits, begun) = (&rollout.limits, rollout.begun.as_deref());
        return Some(Asked { limits, begun, after: rollout.start.map(|_| rollout.newest_version()) });
    };
    let OpenCall { limits, begun, follows, .. } = calls.open(number)?;
    let followed = follows.checked_sub(1).and_then(|at| rollout.turns.get(at as usize));
    let after = followed.and_then(|turn| turn.segments.last()).map(|segment| segment.version);
    Some(Asked { limits, begun: begun.as_deref(), after })
}

/// The log entries that a turn is sampled after.
fn prefix(rollout: &Rollout, number: u32) -> Vec<EntryRef> {
    let Rollout { forks, trajectory, .. } = rollout;
    let Some(calls) = rollout.calls.as_deref() else {
        return fork::context(forks, trajectory, rollout.turns_taken() + 1);
    };
    let Some(OpenCall { observation, follows, .. }) = calls.open(number) else { return Vec::new() };
    [fork::up_to(forks, trajectory, *follows), vec![*observation]].concat()
}

/// The task that samples the rollout's next turn, or the turn of its call of this number; `None` if it does not wait for it.
#[must_use]
pub fn task(context: &TaskContext<'_>, rollout: &Rollout, turn: u32) -> Option<Task> {
    let asked = asked(rollout, turn)?;
    let (id, spec) = (context.id, context.spec);
    let begun = asked.begun.filter(|begun| begun.first >= context.floor());
    let sampling = sampling(context);
    let numbers = [id.group, u64::from(id.index), u64::from(id.attempt), u64::from(turn)];
    Some(Task {
        run: spec.name.clone(),
        key: TaskKey::Generate { rollout: id, turn },
        pool: partition::of_group(&spec.name, id.group, spec.rollout.partitions),
        version: rollout.version(),
        evaluate: context.evaluate,
        body: TaskBody::Generate(GenerateTask {
            context: Vec::new(),
            prefix: prefix(rollout, turn),
            latest: Vec::new(),
            begun: begun.map(|begun| begun.entry),
            sampled: None,
            min_version: begun.map_or(asked.after.unwrap_or(rollout.stamp), |begun| begun.newest),
            max_new_tokens: max_new_tokens(context, asked.limits),
            sampling: Sampling {
                stop_strings: [sampling.stop_strings, asked.limits.stop.clone()].concat(),
                ..sampling
            },
            seed: seed(spec.seed, Purpose::Turn, &numbers),
        }),
    })
}

/// Tokens of a turn at most: the run's, or fewer if its environment says so.
fn max_new_tokens(context: &TaskContext<'_>, limits: &TurnLimits) -> u32 {
    let most = context.domain.max_new_tokens;
    limits.max_new_tokens.map_or(most, |own| own.clamp(1, most))
}

/// The sampling settings of the rollout's turns.
fn sampling(context: &TaskContext<'_>) -> Sampling {
    let TaskContext { spec, evaluate, evaluate_temperature, .. } = context;
    spec.sampling(if *evaluate { *evaluate_temperature } else { spec.rollout.temperature })
}

/// Refuses tokens that the model does not have: it could not be trained on them.
pub(crate) fn check_tokens(what: &str, highest: u32, below: Option<u32>) -> Result<(), Refused> {
    match below {
        Some(below) if highest >= below => {
            Err(Refused(format!("{what} has token={highest}; each must be below {below}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// The part of a turn that a leaving worker handed back, of this number or of the call of this number; `None` if it may
/// not be continued. `seq` is its position in the log.
///
/// # Errors
/// As [`done`].
pub(crate) fn begun(
    rollout: &Rollout,
    context: &TaskContext<'_>,
    number: u32,
    (seq, part): (u64, &TurnBrief),
) -> Result<Option<Begun>, Refused> {
    let Some(asked) = asked(rollout, number) else { return Ok(None) };
    let (Some(first), Some(newest)) = (part.segments.first(), part.segments.last()) else { return Ok(None) };
    if first.version < context.floor() {
        return Ok(None);
    }
    check(&asked, context, context.floor()..=context.version, part)?;
    let is_short = part.tokens < max_new_tokens(context, asked.limits);
    let entry = part.entry(seq);
    Ok(is_short.then_some(Begun { entry, first: first.version, newest: newest.version }))
}

/// Refuses a turn that could not be trained on.
fn check(
    asked: &Asked<'_>,
    context: &TaskContext<'_>,
    may_sample: RangeInclusive<PolicyVersion>,
    turn: &TurnBrief,
) -> Result<(), Refused> {
    let spec = context.spec;
    // Versions never decrease within a conversation.
    let oldest = asked.after.unwrap_or(*may_sample.start());
    check_versions(&turn.segments, oldest, *may_sample.end()).map_err(|e| Refused(e.to_string()))?;
    let most = max_new_tokens(context, asked.limits);
    if turn.tokens > most {
        return Err(Refused(format!("turn has tokens={}, more than {most}", turn.tokens)));
    }
    if sampling(context).cuts() && !turn.uncut {
        return Err(Refused("turn has no uncut_logprobs, but its run cuts unlikely tokens off".to_owned()));
    }
    check_tokens("turn", turn.highest, spec.sample_below().or(spec.model.vocabulary()))
}

/// Applies a well-formed turn of this number, or of the call of this number. `seq` is its position in the log.
///
/// # Errors
/// The turn could not be trained on: too many tokens, one that may not be sampled, or a version
/// that may not sample.
pub(crate) fn done(
    rollout: &mut Rollout,
    context: &TaskContext<'_>,
    (number, may_sample): (u32, RangeInclusive<PolicyVersion>),
    (seq, turn): (u64, TurnBrief),
) -> Result<(), Refused> {
    let Some(asked) = asked(rollout, number) else { return Ok(()) };
    check(&asked, context, may_sample, &turn)?;
    // A turn of at most one token always ends by length, so that is no truncation.
    rollout.truncated = max_new_tokens(context, asked.limits) > 1 && turn.finish == Finish::Length;
    let answered = rollout.calls.as_mut().and_then(|calls| calls.answer(number));
    match answered {
        Some(OpenCall { observation, follows, .. }) => {
            let own = rollout.turns.len() as u32 + 1;
            rollout.forks.extend((follows + 1 < own).then_some(Fork { turn: own, follows }));
            rollout.trajectory.push(observation);
            rollout.results.push(TurnResult { reward: 0.0, valid: true, tokens: turn.tokens });
            // A part of it may be from before the version that the rollout was stamped with since.
            if let Some(first) = turn.segments.first() {
                rollout.stamp = rollout.stamp.min(first.version);
            }
        }
        None => {
            if rollout.start.is_none() {
                rollout.start = turn.segments.first().map(|segment| segment.version);
            }
            rollout.begun = None;
            rollout.phase = Phase::EnvStep;
        }
    }
    rollout.trajectory.push(turn.entry(seq));
    rollout.turns.push(BatchTurn { at: 0, logprobs: Vec::new(), segments: turn.segments, reward: 0.0 });
    Ok(())
}
