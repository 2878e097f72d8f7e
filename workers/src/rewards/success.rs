//! 1 when the goal was reached, else 0.

use millrace_schemas::reward::RewardTask;

pub(super) fn score(task: &RewardTask) -> f64 {
    f64::from(u8::from(task.success))
}
