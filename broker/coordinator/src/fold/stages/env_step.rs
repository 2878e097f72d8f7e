//! After a step of the environment: the next turn, or the scores when the episode is over.

use millrace_schemas::brief::StepBrief;
use millrace_schemas::env_step::{EnvAction, EnvStepTask, Split};
use millrace_schemas::reward::TurnResult;
use millrace_schemas::submit::Domain;
use millrace_schemas::{Fork, Task, TaskBody, TaskKey};

use crate::fold::context::{Refused, TaskContext};
use crate::fold::pools::pool;
use crate::fold::rollout::{Phase, Rollout};
use crate::fold::rows;
use crate::fold::seeds::{Purpose, seed};
use crate::fold::stages::generate::check_tokens;

/// The task that resets the rollout's environment or takes its last turn as an action.
#[must_use]
pub fn task(context: &TaskContext<'_>, rollout: &Rollout) -> Task {
    let (spec, Domain { number, environment, .. }) = (context.spec, context.domain);
    let (split, purpose) = if context.evaluate {
        (Split::HeldOut, Purpose::HeldOutPrompt)
    } else {
        (Split::Train, Purpose::TrainPrompt)
    };
    let (action, prefix) = match (rollout.phase, rollout.trajectory.as_slice()) {
        (Phase::EnvStep, [.., before, turn]) => {
            (EnvAction::Step { state: Vec::new(), tokens: Vec::new() }, vec![*before, *turn])
        }
        _ => (EnvAction::Reset, Vec::new()),
    };
    Task {
        run: spec.name.clone(),
        key: TaskKey::EnvStep { rollout: context.id, turn: rollout.turns.len() as u32 },
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
            action,
        }),
    }
}

/// Applies a step of the environment. `seq` is its position in the log.
///
/// # Errors
/// The step is invalid: tokens that the model does not have, or no observation in an episode that
/// is not over.
pub(crate) fn done(
    rollout: &mut Rollout,
    context: &TaskContext<'_>,
    (seq, step): (u64, &StepBrief),
) -> Result<(), Refused> {
    let TaskContext { spec, domain, .. } = context;
    check_tokens("observation", step.highest, spec.model.vocabulary())?;
    if !step.done && step.tokens == 0 {
        return Err(Refused("environment gave no observation in an episode that is not over".into()));
    }
    let reset = rollout.phase == Phase::Reset;
    if reset && step.done {
        return Err(Refused("environment was over at its reset".into()));
    }
    let last = rollout.turns_taken();
    if let Some(follows) = step.follows.filter(|follows| *follows > last || rollout.skipped > 0) {
        return Err(Refused(format!(
            "observation follows turn={follows}; the rollout has turns={last} of its own to follow"
        )));
    }
    if !reset {
        let tokens = rollout.trajectory.last().map_or(0, |turn| turn.tokens);
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
    rollout.truncated |= !step.success && most > 1 && rollout.turns_taken() >= most;
    // No one reads the observation after the last turn, and training on it would be training on
    // padding.
    rollout.phase = if over { Phase::Reward } else { Phase::Generate };
    let follows = step.follows.filter(|follows| !over && *follows < last);
    rollout.forks.extend(follows.map(|follows| Fork { turn: last + 1, follows }));
    Ok(())
}
