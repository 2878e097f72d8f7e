//! After a sampled turn: the environment takes it as its action.

use millrace_schemas::brief::TurnBrief;
use millrace_schemas::generate::{Finish, GenerateTask, Sampling, check_versions};
use millrace_schemas::train_shard::BatchTurn;
use millrace_schemas::{PolicyVersion, Task, TaskBody, TaskKey, fork, partition};

use std::ops::RangeInclusive;

use crate::fold::context::{Refused, TaskContext};
use crate::fold::rollout::{Begun, Phase, Rollout};
use crate::fold::seeds::{Purpose, seed};

/// The task that samples the rollout's next turn.
#[must_use]
pub fn task(context: &TaskContext<'_>, rollout: &Rollout) -> Task {
    let turn = rollout.turns.len() as u32 + 1;
    let (id, spec) = (context.id, context.spec);
    let begun = rollout.begun.as_deref().filter(|begun| begun.first >= context.floor());
    let sampling = sampling(context);
    let numbers = [id.group, u64::from(id.index), u64::from(id.attempt), u64::from(turn)];
    Task {
        run: spec.name.clone(),
        key: TaskKey::Generate { rollout: id, turn },
        pool: partition::of_group(&spec.name, id.group, spec.rollout.partitions),
        version: rollout.version(),
        evaluate: context.evaluate,
        body: TaskBody::Generate(GenerateTask {
            context: Vec::new(),
            prefix: fork::context(&rollout.forks, &rollout.trajectory, rollout.turns_taken() + 1),
            latest: Vec::new(),
            begun: begun.map(|begun| begun.entry),
            sampled: None,
            min_version: begun.map_or(rollout.newest_version(), |begun| begun.newest),
            max_new_tokens: max_new_tokens(context, rollout),
            sampling: Sampling {
                stop_strings: [sampling.stop_strings, rollout.limits.stop.clone()].concat(),
                ..sampling
            },
            seed: seed(spec.seed, Purpose::Turn, &numbers),
        }),
    }
}

/// Tokens of the rollout's next turn at most: the run's, or fewer if its environment says so.
fn max_new_tokens(context: &TaskContext<'_>, rollout: &Rollout) -> u32 {
    let most = context.domain.max_new_tokens;
    rollout.limits.max_new_tokens.map_or(most, |own| own.clamp(1, most))
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

/// The part of a turn that a leaving worker handed back; `None` if it may not be continued. `seq` is
/// its position in the log.
///
/// # Errors
/// As [`done`].
pub(crate) fn begun(
    rollout: &Rollout,
    context: &TaskContext<'_>,
    (seq, part): (u64, &TurnBrief),
) -> Result<Option<Begun>, Refused> {
    let (Some(first), Some(newest)) = (part.segments.first(), part.segments.last()) else { return Ok(None) };
    if first.version < context.floor() {
        return Ok(None);
    }
    check(rollout, context, context.floor()..=context.version, part)?;
    let is_short = part.tokens < max_new_tokens(context, rollout);
    let entry = part.entry(seq);
    Ok(is_short.then_some(Begun { entry, first: first.version, newest: newest.version }))
}

/// Refuses a turn that could not be trained on.
fn check(
    rollout: &Rollout,
    context: &TaskContext<'_>,
    may_sample: RangeInclusive<PolicyVersion>,
    turn: &TurnBrief,
) -> Result<(), Refused> {
    let spec = context.spec;
    // Versions never decrease within a rollout.
    let oldest = rollout.start.map_or(*may_sample.start(), |_| rollout.newest_version());
    check_versions(&turn.segments, oldest, *may_sample.end()).map_err(|e| Refused(e.to_string()))?;
    let most = max_new_tokens(context, rollout);
    if turn.tokens > most {
        return Err(Refused(format!("turn has tokens={}, more than {most}", turn.tokens)));
    }
    if sampling(context).cuts() && !turn.uncut {
        return Err(Refused("turn has no uncut_logprobs, but its run cuts unlikely tokens off".to_owned()));
    }
    check_tokens("turn", turn.highest, spec.sample_below().or(spec.model.vocabulary()))
}

/// Applies a well-formed turn. `seq` is its position in the log.
///
/// # Errors
/// The turn could not be trained on: too many tokens, one that may not be sampled, or a version
/// that may not sample.
pub(crate) fn done(
    rollout: &mut Rollout,
    context: &TaskContext<'_>,
    may_sample: RangeInclusive<PolicyVersion>,
    (seq, turn): (u64, TurnBrief),
) -> Result<(), Refused> {
    check(rollout, context, may_sample, &turn)?;
    let entry = turn.entry(seq);
    if rollout.start.is_none() {
        rollout.start = turn.segments.first().map(|segment| segment.version);
    }
    rollout.begun = None;
    // A turn of at most one token always ends by length, so that is no truncation.
    rollout.truncated = max_new_tokens(context, rollout) > 1 && turn.finish == Finish::Length;
    rollout.trajectory.push(entry);
    rollout.turns.push(BatchTurn { at: 0, logprobs: Vec::new(), segments: turn.segments, reward: 0.0 });
    rollout.phase = Phase::EnvStep;
    Ok(())
}
