//! The share of turns that were valid actions, minus 1.

use millrace_schemas::reward::RewardTask;

pub(super) fn score(task: &RewardTask) -> f64 {
    let valid = task.turns.iter().filter(|turn| turn.valid).count();
    valid as f64 / task.turns.len() as f64 - 1.0
}
