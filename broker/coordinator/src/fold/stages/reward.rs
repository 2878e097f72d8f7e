//! After a score: when all of a rollout's scores are there, it is finished.

use millrace_schemas::env_step::{EnvironmentSpec, Settings};
use millrace_schemas::reward::RewardTask;
use millrace_schemas::{EntryRef, Task, TaskBody, TaskKey};

use crate::fold::context::{Refused, TaskContext};
use crate::fold::pools::pool;
use crate::fold::rollout::{Phase, Rollout};

/// The task that scores the rollout by the reward of this number; `None` if the run has no such reward.
#[must_use]
pub fn task(context: &TaskContext<'_>, rollout: &Rollout, number: u32) -> Option<Task> {
    let reward = context.domain.rewards.get(number as usize)?;
    Some(Task {
        run: context.spec.name.clone(),
        key: TaskKey::Reward { rollout: context.id, reward: number },
        pool: pool(reward.pool()),
        version: rollout.version(),
        evaluate: context.evaluate,
        body: TaskBody::Reward(RewardTask {
            rule: reward.rule,
            turns: rollout.results.clone(),
            success: rollout.success,
            settings: reward.settings.clone(),
            prefix: if reward.reads_words() { observations(rollout) } else { Vec::new() },
            conversation: Vec::new(),
            row: Settings::new(),
        }),
    })
}

/// Log entries of all observations, the reset's first.
fn observations(rollout: &Rollout) -> Vec<EntryRef> {
    rollout.trajectory.iter().step_by(2).copied().collect()
}

/// Applies a score. A score that is not a number was refused before: it is a failure, never a 0.
///
/// # Errors
/// The run has no such reward.
pub(crate) fn done(
    rollout: &mut Rollout,
    environment: &EnvironmentSpec,
    reward: usize,
    scored: f64,
) -> Result<(), Refused> {
    let Some(score) = rollout.scores.get_mut(reward) else {
        return Err(Refused(format!("the run has no reward {reward}")));
    };
    *score = Some(scored);
    if rollout.scores.iter().all(Option::is_some) {
        if environment.succeeds_by_reward() {
            rollout.success = rollout.scores.first().copied().flatten().is_some_and(|score| score >= 1.0);
        }
        rollout.phase = Phase::Finished;
    }
    Ok(())
}
