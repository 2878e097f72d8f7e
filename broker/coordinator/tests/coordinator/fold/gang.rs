//! Steps of several ranks: rank assignment, void attempts, and one commit of each version.

use millrace_schemas::api::RunState;
use millrace_schemas::limits::{MAX_MEMBERS, STALL_MS};
use millrace_schemas::train_shard::{StepVoid, TrainShardTask};
use millrace_schemas::{Event, OutcomeBody, Stage, Task, TaskBody, TaskKey};

use super::harness::Harness;
use super::{bytes, replay, spec, to_the_end};

const GANG: &str = "\n[gang]\nranks = 2\npatience_ms = 5000\n";

fn joined(name: &str, instance: &str) -> Event {
    Event::Joined { worker: name.parse().expect("a name"), instance: instance.to_owned() }
}

fn left(name: &str, instance: &str) -> Event {
    Event::Left { worker: name.parse().expect("a name"), instance: instance.to_owned() }
}

fn shards(harness: &Harness) -> Vec<(&Task, &TrainShardTask)> {
    let shard = |task: &'_ Task| match &task.body {
        TaskBody::TrainShard(shard) if shard.world > 1 => Some(shard.clone()),
        _ => None,
    };
    let tasks = harness.queue.values().filter(|task| shard(task).is_some());
    tasks
        .map(|task| match &task.body {
            TaskBody::TrainShard(shard) => (task, shard),
            _ => unreachable!("filtered"),
        })
        .collect()
}

/// Works until the shards of a step are queued and nothing else is.
fn to_the_step(harness: &mut Harness) {
    for _ in 0..100_000 {
        let other = harness.queue.values().find(|task| task.stage() != Stage::TrainShard || is_alone(task));
        let Some(name) = other.map(|task| format!("{}.{}", task.key, task.version)) else { break };
        let task = harness.queue.remove(&name).expect("it was found");
        if !harness
            .policy
            .as_ref()
            .is_some_and(|policy| policy.is_stale(task.key, task.version, task.evaluate))
        {
            harness.finish(&task);
        }
    }
}

fn is_alone(task: &Task) -> bool {
    matches!(&task.body, TaskBody::TrainShard(shard) if shard.world == 1)
}

fn pools(harness: &Harness) -> Vec<String> {
    shards(harness).iter().map(|(task, _)| task.pool.to_string()).collect()
}

fn gang(members: &[&str]) -> Harness {
    let mut harness = Harness::submit(&spec(GANG), 0);
    for name in members {
        harness.append(joined(name, "i1"));
    }
    to_the_step(&mut harness);
    harness
}

fn tick(harness: &mut Harness, ms: u64) {
    let now = harness.state.unix_ms;
    harness.append(Event::Tick { unix_ms: now + ms });
}

#[test]
fn each_member_has_a_shard_of_its_own() {
    let mut harness = gang(&["b", "a"]);
    assert_eq!(pools(&harness), ["at-b", "at-a"], "by the order of joining");
    let seen: Vec<_> = shards(&harness).iter().map(|(_, s)| (s.rank, s.world, s.gang)).collect();
    assert_eq!(seen, [(0, 2, 1), (1, 2, 1)]);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
    assert_eq!(harness.run().gang.generations, 1, "one generation for all steps");
    assert!(harness.run().books.void_steps == 0 && harness.versions.len() == 7);
}

/// An operator deleted the consumer of a member that stays.
#[test]
fn a_members_consumer_is_created_again_when_its_step_stalls() {
    let mut harness = gang(&["a", "b"]);
    let before = harness.pools.clone();
    harness.pools.retain(|(_, pool)| pool.as_str() != "at-b");
    assert_ne!(harness.pools, before);
    tick(&mut harness, STALL_MS);
    assert_eq!(harness.pools, before);
}

#[test]
fn a_step_whose_member_leaves_restarts_with_the_same_batch_and_is_committed_once() {
    let mut harness = gang(&["a", "b"]);
    let batch = |harness: &Harness| format!("{:?}", shards(harness)[0].1.work);
    let before = batch(&harness);
    // One rank is done, the other dies.
    let (first, _) = shards(&harness)[0];
    let first = first.clone();
    harness.finish(&first);
    harness.append(left("b", "i1"));
    assert!(shards(&harness).is_empty(), "a newcomer is waited for");
    harness.append(joined("b", "i2"));
    assert_eq!(pools(&harness), ["at-a", "at-b"]);
    assert_eq!(batch(&harness), before);
    let attempts: Vec<_> = shards(&harness).iter().map(|(task, shard)| (task.key, shard.gang)).collect();
    let key = |rank| TaskKey::TrainShard { makes: 1, rank, attempt: 1 };
    assert_eq!(attempts, [(key(0), 2), (key(1), 2)], "{attempts:?}");
    // The share of the void try comes late, from a worker that was paused.
    harness.finish(&first);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
    assert_eq!(harness.run().books.void_steps, 1);
    assert_eq!(harness.versions.len(), 7, "{:?}", harness.versions);
    assert_eq!(bytes(&replay(&harness.log)), bytes(&harness.state));
}

#[test]
fn fewer_members_continue_if_no_worker_joins() {
    let mut harness = gang(&["a", "b"]);
    harness.append(left("a", "i1"));
    tick(&mut harness, 4_000);
    assert!(harness.queue.is_empty(), "{:?}", harness.queue.keys());
    tick(&mut harness, 2_000);
    let alone: Vec<_> = harness.queue.values().map(|task| task.pool.to_string()).collect();
    assert_eq!(alone, ["gang"], "any worker alone");
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_clock_that_was_ahead_does_not_stop_time() {
    let mut harness = gang(&["a", "b"]);
    let now = harness.state.unix_ms;
    // A coordinator whose clock is a week ahead acts for a moment, before anybody leaves.
    harness.append(Event::Tick { unix_ms: now + 7 * 86_400_000 });
    harness.append(Event::Tick { unix_ms: now });
    harness.append(left("a", "i1"));
    tick(&mut harness, 4_000);
    assert!(harness.queue.is_empty(), "a newcomer is waited for");
    tick(&mut harness, 2_000);
    assert_eq!(harness.queue.len(), 1, "and not for a week");
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_worker_that_joins_has_a_shard_of_the_next_step() {
    let mut harness = gang(&["a"]);
    tick(&mut harness, 6_000);
    harness.append(joined("c", "i1"));
    let first = harness.queue.values().next().cloned().expect("the step of one");
    assert!(is_alone(&first), "a step that was begun goes on");
    harness.work();
    to_the_step(&mut harness);
    assert_eq!(pools(&harness), ["at-a", "at-c"]);
}

fn void(harness: &mut Harness, rank: u32) {
    let task = shards(harness)[rank as usize].0.clone();
    let body = OutcomeBody::Void(StepVoid { reason: "rank=1 hung up".into() });
    harness.say(task.key, body);
}

#[test]
fn a_rank_that_lost_the_others_voids_the_step_and_finally_one_worker_makes_it_alone() {
    let mut harness = gang(&["a", "b"]);
    for number in 2..4 {
        void(&mut harness, 1);
        let seen: Vec<_> = shards(&harness).iter().map(|(task, shard)| (task.key, shard.gang)).collect();
        let key = |rank| TaskKey::TrainShard { makes: 1, rank, attempt: number as u32 - 1 };
        assert_eq!(seen, [(key(0), number), (key(1), number)]);
    }
    void(&mut harness, 0);
    let alone: Vec<_> = harness.queue.values().map(|task| task.pool.to_string()).collect();
    assert_eq!(alone, ["gang"]);
    harness.work();
    to_the_step(&mut harness);
    assert_eq!(pools(&harness), ["at-a", "at-b"], "together after the commit");
    to_the_end(&mut harness);
    assert_eq!((harness.run().state, harness.versions.len()), (RunState::Finished, 7));
}

#[test]
fn a_restart_queues_the_same_shards() {
    let mut harness = gang(&["a", "b"]);
    void(&mut harness, 0);
    let before: Vec<_> = harness.queue.keys().cloned().collect();
    harness.queue.clear();
    harness.restart();
    assert_eq!(harness.queue.keys().cloned().collect::<Vec<_>>(), before);
    for every in [1, 2, 3, 7] {
        let mut harness = Harness::submit(&spec(GANG), every);
        harness.append(joined("a", "i1"));
        harness.append(joined("b", "i1"));
        to_the_end(&mut harness);
        assert_eq!(harness.run().state, RunState::Finished, "every={every}");
    }
}

#[test]
fn a_poisoned_shard_pauses_the_run_until_it_is_requeued() {
    let mut harness = gang(&["a", "b"]);
    let (key, other) = (shards(&harness)[1].0.key, shards(&harness)[0].0.clone());
    harness.append(Event::DeadLetter { key, reason: "no such file".into(), exhausted: false });
    assert_eq!(harness.run().state, RunState::Paused);
    let body = OutcomeBody::Void(StepVoid { reason: "rank=1 never came".into() });
    harness.say(other.key, body);
    assert_eq!(harness.run().state, RunState::Paused, "the others' words change nothing");
    harness.append(Event::Requeued { key });
    assert_eq!(shards(&harness)[0].1.gang, 2);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_flood_of_members_is_bounded_and_leaves_no_pools() {
    let mut harness = gang(&["a", "b"]);
    let before = harness.pools.clone();
    for number in 0..MAX_MEMBERS + 1_000 {
        harness.append(joined(&format!("flood-{number}"), "i1"));
    }
    assert_eq!(harness.state.members.len(), MAX_MEMBERS);
    assert_eq!(
        harness.pools.len(),
        before.len() + MAX_MEMBERS - 2,
        "each member has a pool, and nobody else"
    );
    // A process of a member's name takes its place, full or not.
    harness.append(joined("a", "i2"));
    assert_eq!(harness.state.members[&"a".parse().expect("a name")].instance, "i2");
    for number in 0..MAX_MEMBERS + 1_000 {
        harness.append(left(&format!("flood-{number}"), "i1"));
    }
    assert_eq!(harness.pools, before);
    to_the_end(&mut harness);
    assert_eq!(harness.run().state, RunState::Finished);
}
