//! The sum of the environment's own rewards.

use millrace_schemas::reward::RewardTask;

pub(super) fn score(task: &RewardTask) -> f64 {
    task.turns.iter().map(|turn| turn.reward).sum()
}
