//! Generate tasks of all turns and samples of a prompt go to the pool of one partition, before and
//! after restarts.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::fold::{Command, outstanding};
use millrace_schemas::api::RunState;
use millrace_schemas::{PoolName, RunSpec, Stage, partition};

use super::harness::{Harness, RUN};
use super::spec;

/// The pools of each group's generate tasks, over a run in which the coordinator and the queue are
/// lost several times.
fn pools_by_group(spec: &RunSpec) -> (Harness, BTreeMap<u64, BTreeSet<PoolName>>) {
    let mut harness = Harness::submit(spec, 0);
    let mut pools = BTreeMap::<u64, BTreeSet<PoolName>>::new();
    for round in 1..200_000 {
        for task in harness.queue.values().filter(|task| task.stage() == Stage::Generate) {
            let group = task.key.rollout().expect("it is of a rollout").group;
            pools.entry(group).or_default().insert(task.pool.clone());
        }
        if round % 17 == 0 {
            harness.lose_all(harness.log.len() / 2);
        }
        if !harness.work() {
            break;
        }
    }
    assert_eq!(harness.run().state, RunState::Finished, "{:?}", harness.run().reason);
    (harness, pools)
}

#[test]
fn a_group_keeps_its_partition_across_restarts() {
    let (harness, pools) = pools_by_group(&spec("partitions = 8"));
    assert!(pools.len() >= 18, "six steps of three groups");
    for (group, pools) in &pools {
        let partition = partition::of_group(&RUN.parse().expect("a name"), *group, 8);
        assert_eq!(pools, &BTreeSet::from([partition]), "group {group}");
    }
    let used: BTreeSet<_> = pools.values().flatten().collect();
    assert!(used.len() >= 5, "{used:?}");
    assert_eq!(harness.policy.expect("a policy").partitions, 8, "workers know where to pull");
}

#[test]
fn partitions_are_created_before_tasks_are_queued() {
    let harness = Harness::submit(&spec("partitions = 3"), 0);
    let (stage, pools) = (Stage::Generate, partition::pools(3));
    let made = Command::EnsurePartitions { run: RUN.parse().expect("a name"), stage, pools };
    assert!(outstanding::of(&harness.state).contains(&made));
    let plain = Harness::submit(&spec(""), 0);
    let partitions = |command: &Command| matches!(command, Command::EnsurePartitions { .. });
    assert!(!outstanding::of(&plain.state).iter().any(partitions));
}

#[test]
fn a_run_without_partitions_has_one_pool() {
    let (harness, pools) = pools_by_group(&spec(""));
    let used: BTreeSet<_> = pools.values().flatten().map(PoolName::as_str).collect();
    assert_eq!(used, BTreeSet::from(["policy"]));
    assert_eq!(harness.policy.expect("a policy").partitions, 1);
}
