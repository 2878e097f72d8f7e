//! Where generate tasks go: the pool of one partition for all turns and samples of a prompt, whoever puts them.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::fold::{Command, outstanding};
use millrace_schemas::api::RunState;
use millrace_schemas::{PoolName, RunSpec, Stage, partition};

use super::spec;
use super::world::{RUN, World};

/// The pools of each group's generate tasks, over a run in which the coordinator and the queue are lost now and then.
fn pools_by_group(spec: &RunSpec) -> (World, BTreeMap<u64, BTreeSet<PoolName>>) {
    let mut world = World::submit(spec, 0);
    let mut pools = BTreeMap::<u64, BTreeSet<PoolName>>::new();
    for round in 1..200_000 {
        for task in world.queue.values().filter(|task| task.stage() == Stage::Generate) {
            let group = task.key.rollout().expect("it is of a rollout").group;
            pools.entry(group).or_default().insert(task.pool.clone());
        }
        if round % 17 == 0 {
            world.lose_all(world.log.len() / 2);
        }
        if !world.work() {
            break;
        }
    }
    assert_eq!(world.run().state, RunState::Finished, "{:?}", world.run().reason);
    (world, pools)
}

#[test]
fn a_group_keeps_its_partition_whoever_puts_its_tasks() {
    let (world, pools) = pools_by_group(&spec("partitions = 8"));
    assert!(pools.len() >= 18, "six steps of three groups");
    for (group, pools) in &pools {
        let partition = partition::of_group(&RUN.parse().expect("a name"), *group, 8);
        assert_eq!(pools, &BTreeSet::from([partition]), "group {group}");
    }
    let used: BTreeSet<_> = pools.values().flatten().collect();
    assert!(used.len() >= 5, "{used:?}");
    assert_eq!(world.policy.expect("a policy").partitions, 8, "workers know where to pull");
}

#[test]
fn its_partitions_are_made_before_tasks_are_put() {
    let world = World::submit(&spec("partitions = 3"), 0);
    let (stage, pools) = (Stage::Generate, partition::pools(3));
    let made = Command::EnsurePartitions { run: RUN.parse().expect("a name"), stage, pools };
    assert!(outstanding::of(&world.state).contains(&made));
    let plain = World::submit(&spec(""), 0);
    let partitions = |command: &Command| matches!(command, Command::EnsurePartitions { .. });
    assert!(!outstanding::of(&plain.state).iter().any(partitions));
}

#[test]
fn a_run_that_does_not_ask_has_one_pool() {
    let (world, pools) = pools_by_group(&spec(""));
    let used: BTreeSet<_> = pools.values().flatten().map(PoolName::as_str).collect();
    assert_eq!(used, BTreeSet::from(["policy"]));
    assert_eq!(world.policy.expect("a policy").partitions, 1);
}
