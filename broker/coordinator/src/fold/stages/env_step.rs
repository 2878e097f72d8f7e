//! After a step of the environment: the next turn, or the scores when the episode is over.

use millrace_schemas::brief::StepBrief;
use millrace_schemas::env_step::{EnvAction, EnvStepTask, Split};
use millrace_schemas::reward::TurnResult;
use millrace_schemas::submit::Domain;
use millrace_schemas::{EntryRef, Fork, Task, TaskBody, TaskKey};

use crate::fold::calls::{Bounds, Calls};
use crate::fold::context::{Refused, TaskContext};
use crate::fold::pools::pool;
use crate::fold::rollout::{Phase, Rollout};
use crate::fold::rows;
use crate::fold::seeds::{Purpose, seed};
use crate::fold::stages::generate::check_tokens;

/// The task that resets the rollout's environment, takes its last turn as an action, or is the step of this number of an
/// environment whose calls are answered side by side.
#[must_use]
pub fn task(context: &TaskContext<'_>, rollout: &Rollout, step: u32) -> Task {
    let (prefix, answers) = prefix(rollout, step);
    let (spec, Domain { number, environment, .. }) = (context.spec, context.domain);
    let (split, purpose) = if context.evaluate {
        (Split::HeldOut, Purpose::HeldOutPrompt)
    } else {
        (Split::Train, Purpose::TrainPrompt)
    };
    let action = match prefix.is_empty() {
        true => EnvAction::Reset,
        false => EnvAction::Step { state: Vec::new(), tokens: Vec::new() },
    };
    Task {
        run: spec.name.clone(),
        key: TaskKey::EnvStep { rollout: context.id, turn: step },
        pool: pool(environment.pool()),
        version: rollout.version(),
        evaluate: context.evaluate,
        body: TaskBody::EnvStep(EnvStepTask {
            environment: environment.clone(),
            split,
            seed: if spec.domains.is_empty() {
                seed(spec.seed, purpose, &[context.prompt])
            } else {
                seed(spec.seed, purpose, &[context.prompt, u64::from(number)])
            },
            row: rows::row_of_prompt((spec.seed, number), environment, split, context.prompt),
            prefix,
            answers,
            action,
        }),
    }
}

/// The log entries of the environment's state and of the turn that it takes, and the call that this turn answers.
fn prefix(rollout: &Rollout, step: u32) -> (Vec<EntryRef>, Option<u32>) {
    if let Some(calls) = rollout.calls.as_deref() {
        let call = calls.steps.get(&step).copied().unwrap_or(0);
        let turn = calls.turn_of(call).and_then(|turn| turn.checked_sub(1));
        let turn = turn.and_then(|turn| rollout.trajectory.get(2 * turn as usize + 1));
        return ([Some(&calls.host), turn].into_iter().flatten().copied().collect(), Some(call));
    }
    match (rollout.phase, rollout.trajectory.as_slice()) {
        (Phase::EnvStep, [.., before, turn]) => (vec![*before, *turn], None),
        _ => (Vec::new(), None),
    }
}

/// Most calls of a rollout of this domain.
fn bounds(domain: &Domain<'_>) -> Bounds {
    let environment = domain.environment;
    Bounds { in_all: environment.max_turns(), at_once: environment.parallel_calls() }
}

/// Applies the environment's step of this number. `seq` is its position in the log.
///
/// # Errors
/// The step is invalid: tokens that the model does not have, or no observation in an episode that
/// is not over.
pub(crate) fn done(
    rollout: &mut Rollout,
    context: &TaskContext<'_>,
    number: u32,
    (seq, step): (u64, &StepBrief),
) -> Result<(), Refused> {
    let TaskContext { spec, domain, .. } = context;
    check_tokens("observation", step.highest, spec.model.vocabulary())?;
    if let Some(calls) = rollout.calls.as_mut()
        && !step.done
    {
        return calls.step(number, (seq, step), bounds(domain)).map_err(Refused);
    }
    if !step.done && step.tokens == 0 {
        return Err(Refused("environment gave no observation in an episode that is not over".into()));
    }
    let reset = rollout.phase == Phase::Reset;
    if reset && step.done {
        return Err(Refused("environment was over at its reset".into()));
    }
    if reset && domain.environment.parallel_calls() > 1 {
        let calls = Calls::begin((seq, step), bounds(domain)).map_err(Refused)?;
        rollout.calls = Some(Box::new(calls));
        rollout.phase = Phase::Calls;
        // Its turns may be sampled in any order, by this version or later ones. Its staleness counts from here until all
        // are known.
        rollout.stamp = context.version;
        return Ok(());
    }
    if rollout.calls.is_some() && rollout.turns.is_empty() {
        return Err(Refused("environment was over before a call of it had its turn".into()));
    }
    let last = rollout.turns_taken();
    if let Some(follows) = step.follows.filter(|follows| *follows > last || rollout.skipped > 0) {
        return Err(Refused(format!(
            "observation follows turn={follows}; the rollout has turns={last} of its own to follow"
        )));
    }
    if !reset {
        let tokens = rollout.trajectory.last().map_or(0, |turn| turn.tokens);
        if rollout.calls.take().is_some() {
            // Calls that are open have no turn in it.
            rollout.start = rollout.first_versions().min();
            rollout.results.pop();
        }
        rollout.results.push(TurnResult { reward: step.reward, valid: step.valid, tokens });
        if let Some(turn) = rollout.turns.last_mut() {
            turn.reward = step.reward;
        }
    }
    rollout.success = step.success;
    rollout.limits = step.limits.clone();
    rollout.trajectory.push(step.entry(seq));
    let most = domain.environment.max_turns();
    let over = step.done || rollout.turns_taken() >= most;
    // No one reads the observation after the last turn, and training on it would be training on
    // padding.
    rollout.phase = if over { Phase::Reward } else { Phase::Generate };
    let follows = step.follows.filter(|follows| !over && *follows < last);
    rollout.forks.extend(follows.map(|follows| Fork { turn: last + 1, follows }));
    Ok(())
}
