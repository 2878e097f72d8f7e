//! A task that the queue lost is put again, whatever else goes on.

use millrace_coordinator::Command;
use millrace_schemas::limits::STALL_MS;
use millrace_schemas::{Event, Task, TaskBody};

use super::world::{World, turn};
use super::{spec, take, to_the_end};

/// A world that waits for one task that the queue lost, and an outcome of another that is done.
fn lost() -> (World, Task, Task) {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    let done = take(&mut world, |body| matches!(body, TaskBody::Generate(_)));
    world.finish(&done);
    let lost = take(&mut world, |body| matches!(body, TaskBody::TrainShard(_)));
    assert!(world.queue.is_empty());
    (world, done, lost)
}

fn tick(world: &mut World, ms: u64) {
    let now = world.state.unix_ms;
    world.append(Event::Tick { unix_ms: now + ms });
}

#[test]
fn a_lost_task_is_put_again_whatever_strays_come_in() {
    let (mut world, done, lost) = lost();
    for _ in 0..STALL_MS / 10_000 + 1 {
        tick(&mut world, 10_000);
        // Of a task that nobody waits for.
        world.say(done.key, turn(&[1], &[-0.5], &[(0, 1)]));
    }
    assert!(world.queue.values().any(|task| task.key == lost.key), "it is put again");
    to_the_end(&mut world);
}

#[test]
fn another_run_that_goes_on_does_not_hide_it() {
    let (mut world, _, lost) = lost();
    let mut other = spec("alpha = 1.0");
    other.name = "other".parse().expect("a name");
    let mut put = Vec::new();
    let mut events = vec![Event::Submitted(Box::new(other))];
    for step in 0..40_u64 {
        let mut seq = world.state.seq;
        for event in std::mem::take(&mut events) {
            seq += 1;
            world.log.push(event.clone());
            put.extend(world.state.advance(seq, "other", event));
        }
        // It does what it is asked, all the time.
        let next = put
            .iter()
            .position(|command| matches!(command, Command::PutTask(task) if task.run.as_str() == "other"));
        if let Some(Command::PutTask(task)) = next.map(|at| put.remove(at)) {
            let body = world.answer(&task);
            events.push(super::outcome(task.key, Some(task.question()), body));
        }
        let tick = Event::Tick { unix_ms: 1_001_000 + 3_000 * step };
        world.log.push(tick.clone());
        put.extend(world.state.advance(seq + 1, "all", tick));
    }
    let again = |command: &Command| matches!(command, Command::PutTask(task) if task.key == lost.key && task.run == lost.run);
    assert!(put.iter().any(again));
}

#[test]
fn what_takes_long_is_put_again_less_and_less_often() {
    let (mut world, ..) = lost();
    let mut times = Vec::new();
    for second in 1..=3_600_u64 {
        tick(&mut world, 1_000);
        if !world.queue.is_empty() {
            times.push(second);
            world.queue.clear();
        }
    }
    assert_eq!(times, [60, 180, 420, 900, 1_860]);
}

#[test]
fn a_run_that_moves_or_is_paused_is_left_alone() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    while world.run().policy.is_none() {
        world.work();
    }
    for _ in 0..20 {
        // One task of many is done every 50 s.
        tick(&mut world, 50_000);
        let (_, task) = world.queue.pop_first().expect("something is queued");
        world.finish(&task);
        assert_eq!(world.run().progress.repeats, 0);
    }
    world.append(Event::Paused { reason: String::new(), remedy: String::new() });
    for _ in 0..100 {
        tick(&mut world, 10_000);
    }
    assert!(world.queue.is_empty() && world.run().progress.repeats == 0);
}
