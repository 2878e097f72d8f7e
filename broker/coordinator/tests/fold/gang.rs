//! Steps that several make together: places for members, void steps, and one commit of each version.

use millrace_schemas::api::RunState;
use millrace_schemas::limits::MAX_MEMBERS;
use millrace_schemas::train_shard::{StepVoid, TrainShardTask};
use millrace_schemas::{Event, OutcomeBody, Stage, Task, TaskBody, TaskKey};

use super::world::World;
use super::{bytes, replay, spec, to_the_end};

const GANG: &str = "\n[gang]\nranks = 2\npatience_ms = 5000\n";

fn joined(name: &str, instance: &str) -> Event {
    Event::Joined { worker: name.parse().expect("a name"), instance: instance.to_owned() }
}

fn left(name: &str, instance: &str) -> Event {
    Event::Left { worker: name.parse().expect("a name"), instance: instance.to_owned() }
}

fn shards(world: &World) -> Vec<(&Task, &TrainShardTask)> {
    let shard = |task: &'_ Task| match &task.body {
        TaskBody::TrainShard(shard) if shard.world > 1 => Some(shard.clone()),
        _ => None,
    };
    let tasks = world.queue.values().filter(|task| shard(task).is_some());
    tasks
        .map(|task| match &task.body {
            TaskBody::TrainShard(shard) => (task, shard),
            _ => unreachable!("filtered"),
        })
        .collect()
}

/// Works until the shares of a step are put, and none of anything else is left.
fn to_the_step(world: &mut World) {
    for _ in 0..100_000 {
        let other = world.queue.values().find(|task| task.stage() != Stage::TrainShard || is_alone(task));
        let Some(name) = other.map(|task| format!("{}.{}", task.key, task.version)) else { break };
        let task = world.queue.remove(&name).expect("it was found");
        if !world.policy.as_ref().is_some_and(|policy| policy.is_stale(task.key, task.version, task.evaluate))
        {
            world.finish(&task);
        }
    }
}

fn is_alone(task: &Task) -> bool {
    matches!(&task.body, TaskBody::TrainShard(shard) if shard.world == 1)
}

fn pools(world: &World) -> Vec<String> {
    shards(world).iter().map(|(task, _)| task.pool.to_string()).collect()
}

fn gang(members: &[&str]) -> World {
    let mut world = World::submit(&spec(GANG), 0);
    for name in members {
        world.append(joined(name, "i1"));
    }
    to_the_step(&mut world);
    world
}

fn tick(world: &mut World, ms: u64) {
    let now = world.state.unix_ms;
    world.append(Event::Tick { unix_ms: now + ms });
}

#[test]
fn each_member_has_a_share_of_its_own() {
    let mut world = gang(&["b", "a"]);
    assert_eq!(pools(&world), ["at-b", "at-a"], "by the order of joining");
    let seen: Vec<_> = shards(&world).iter().map(|(_, s)| (s.rank, s.world, s.gang)).collect();
    assert_eq!(seen, [(0, 2, 1), (1, 2, 1)]);
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
    assert_eq!(world.run().gang.generations, 1, "one generation for all steps");
    assert!(world.run().books.void_steps == 0 && world.versions.len() == 7);
}

#[test]
fn a_step_whose_member_leaves_is_made_again_with_the_same_batch_and_committed_once() {
    let mut world = gang(&["a", "b"]);
    let batch = |world: &World| format!("{:?}", shards(world)[0].1.work);
    let before = batch(&world);
    // One rank is done, the other dies.
    let (first, _) = shards(&world)[0];
    let first = first.clone();
    world.finish(&first);
    world.append(left("b", "i1"));
    assert!(shards(&world).is_empty(), "a newcomer is waited for");
    world.append(joined("b", "i2"));
    assert_eq!(pools(&world), ["at-a", "at-b"]);
    assert_eq!(batch(&world), before);
    let attempts: Vec<_> = shards(&world).iter().map(|(task, shard)| (task.key, shard.gang)).collect();
    let key = |rank| TaskKey::TrainShard { makes: 1, rank, attempt: 1 };
    assert_eq!(attempts, [(key(0), 2), (key(1), 2)], "{attempts:?}");
    // The share of the void try comes late, from a worker that was paused.
    world.finish(&first);
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
    assert_eq!(world.run().books.void_steps, 1);
    assert_eq!(world.versions.len(), 7, "{:?}", world.versions);
    assert_eq!(bytes(&replay(&world.log)), bytes(&world.state));
}

#[test]
fn fewer_go_on_when_no_newcomer_comes() {
    let mut world = gang(&["a", "b"]);
    world.append(left("a", "i1"));
    tick(&mut world, 4_000);
    assert!(world.queue.is_empty(), "{:?}", world.queue.keys());
    tick(&mut world, 2_000);
    let alone: Vec<_> = world.queue.values().map(|task| task.pool.to_string()).collect();
    assert_eq!(alone, ["gang"], "any worker alone");
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
}

#[test]
fn a_clock_that_was_ahead_does_not_stop_time() {
    let mut world = gang(&["a", "b"]);
    let now = world.state.unix_ms;
    // A coordinator whose clock is a week ahead acts for a moment, before anybody leaves.
    world.append(Event::Tick { unix_ms: now + 7 * 86_400_000 });
    world.append(Event::Tick { unix_ms: now });
    world.append(left("a", "i1"));
    tick(&mut world, 4_000);
    assert!(world.queue.is_empty(), "a newcomer is waited for");
    tick(&mut world, 2_000);
    assert_eq!(world.queue.len(), 1, "and not for a week");
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
}

#[test]
fn a_newcomer_has_a_share_of_the_next_step() {
    let mut world = gang(&["a"]);
    tick(&mut world, 6_000);
    world.append(joined("c", "i1"));
    let first = world.queue.values().next().cloned().expect("the step of one");
    assert!(is_alone(&first), "a step that was begun goes on");
    world.work();
    to_the_step(&mut world);
    assert_eq!(pools(&world), ["at-a", "at-c"]);
}

fn void(world: &mut World, rank: u32) {
    let task = shards(world)[rank as usize].0.clone();
    let body = OutcomeBody::Void(StepVoid { reason: "rank=1 hung up".into() });
    world.say(task.key, body);
}

#[test]
fn a_rank_that_lost_the_others_voids_the_step_and_at_last_one_makes_it_alone() {
    let mut world = gang(&["a", "b"]);
    for number in 2..4 {
        void(&mut world, 1);
        let seen: Vec<_> = shards(&world).iter().map(|(task, shard)| (task.key, shard.gang)).collect();
        let key = |rank| TaskKey::TrainShard { makes: 1, rank, attempt: number as u32 - 1 };
        assert_eq!(seen, [(key(0), number), (key(1), number)]);
    }
    void(&mut world, 0);
    let alone: Vec<_> = world.queue.values().map(|task| task.pool.to_string()).collect();
    assert_eq!(alone, ["gang"]);
    world.work();
    to_the_step(&mut world);
    assert_eq!(pools(&world), ["at-a", "at-b"], "together again after the commit");
    to_the_end(&mut world);
    assert_eq!((world.run().state, world.versions.len()), (RunState::Finished, 7));
}

#[test]
fn a_restart_finds_the_same_shares() {
    let mut world = gang(&["a", "b"]);
    void(&mut world, 0);
    let before: Vec<_> = world.queue.keys().cloned().collect();
    world.queue.clear();
    world.restart();
    assert_eq!(world.queue.keys().cloned().collect::<Vec<_>>(), before);
    for every in [1, 2, 3, 7] {
        let mut world = World::submit(&spec(GANG), every);
        world.append(joined("a", "i1"));
        world.append(joined("b", "i1"));
        to_the_end(&mut world);
        assert_eq!(world.run().state, RunState::Finished, "every={every}");
    }
}

#[test]
fn a_poisoned_share_pauses_the_run_until_it_is_requeued() {
    let mut world = gang(&["a", "b"]);
    let (key, other) = (shards(&world)[1].0.key, shards(&world)[0].0.clone());
    world.append(Event::DeadLetter { key, reason: "no such file".into(), exhausted: false });
    assert_eq!(world.run().state, RunState::Paused);
    let body = OutcomeBody::Void(StepVoid { reason: "rank=1 never came".into() });
    world.say(other.key, body);
    assert_eq!(world.run().state, RunState::Paused, "the others' words change nothing");
    world.append(Event::Requeued { key });
    assert_eq!(shards(&world)[0].1.gang, 2);
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
}

#[test]
fn a_flood_of_members_is_bounded_and_leaves_nothing() {
    let mut world = gang(&["a", "b"]);
    let before = world.pools.clone();
    for number in 0..MAX_MEMBERS + 1_000 {
        world.append(joined(&format!("flood-{number}"), "i1"));
    }
    assert_eq!(world.state.members.len(), MAX_MEMBERS);
    assert_eq!(world.pools.len(), before.len() + MAX_MEMBERS - 2, "each member has a pool, and nobody else");
    // A process of a member's name takes its place, full or not.
    world.append(joined("a", "i2"));
    assert_eq!(world.state.members[&"a".parse().expect("a name")].instance, "i2");
    for number in 0..MAX_MEMBERS + 1_000 {
        world.append(left(&format!("flood-{number}"), "i1"));
    }
    assert_eq!(world.pools, before);
    to_the_end(&mut world);
    assert_eq!(world.run().state, RunState::Finished);
}
