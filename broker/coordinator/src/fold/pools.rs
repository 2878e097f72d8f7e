//! Names of the pools that a run's tasks go to.

use millrace_schemas::subjects::{self, GENERATE_POOL, PUBLISH_POOL, TRAIN_POOL};
use millrace_schemas::{PoolName, RunSpec, Stage, WorkerId, partition};

use crate::fold::command::{Command, Commands};

/// A pool name that is a constant of the program.
pub(crate) fn pool(name: &str) -> PoolName {
    name.parse().expect("names of pools in the program are valid")
}

/// The consumer of the shards of one member of a gang.
#[must_use]
pub fn member_pool(worker: &WorkerId) -> (Stage, PoolName) {
    (Stage::TrainShard, subjects::member_pool(worker))
}

/// Creates the consumers that a run's tasks need.
pub fn ensure_pools(spec: &RunSpec, out: &mut Commands) {
    out.push(Command::EnsurePools { run: Some(spec.name.clone()), pools: pools(spec) });
    let pools = partition::pools(spec.rollout.partitions);
    if !pools.is_empty() {
        out.push(Command::EnsurePartitions { run: spec.name.clone(), stage: Stage::Generate, pools });
    }
}

/// The consumers that a run's tasks need, without partitions.
fn pools(spec: &RunSpec) -> Vec<(Stage, PoolName)> {
    let mut pools = vec![
        (Stage::Generate, pool(GENERATE_POOL)),
        (Stage::TrainShard, pool(TRAIN_POOL)),
        (Stage::PublishWeights, pool(PUBLISH_POOL)),
    ];
    for domain in spec.parts() {
        pools.push((Stage::EnvStep, pool(domain.environment.pool())));
        pools.extend(domain.rewards.iter().map(|reward| (Stage::Reward, pool(reward.pool()))));
    }
    // Domains may share workers.
    pools.sort();
    pools.dedup();
    pools
}
