//! Whether a run waits for a task.

use millrace_schemas::TaskKey;

use crate::fold::stages::{publish_weights, train_shard};
use crate::fold::state::Run;
use crate::fold::tasks;

/// Whether the run waits for the outcome of this task.
pub(crate) fn is_awaited(run: &Run, key: TaskKey) -> bool {
    match key {
        TaskKey::Generate { .. } | TaskKey::EnvStep { .. } | TaskKey::Reward { .. } => {
            tasks::is_awaited(run, key)
        }
        TaskKey::TrainShard { .. } => train_shard::is_awaited(run, key),
        TaskKey::PublishWeights { .. } => publish_weights::is_awaited(run, key),
    }
}
