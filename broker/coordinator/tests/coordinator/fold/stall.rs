//! A task that the queue lost is requeued, despite other progress.

use millrace_coordinator::Command;
use millrace_schemas::limits::STALL_MS;
use millrace_schemas::{Event, Task, TaskBody};

use super::harness::{Harness, turn};
use super::{spec, take, to_the_end};

/// A harness that waits for one task that the queue lost, and an outcome of another that is done.
fn lost() -> (Harness, Task, Task) {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let done = take(&mut harness, |body| matches!(body, TaskBody::Generate(_)));
    harness.finish(&done);
    let lost = take(&mut harness, |body| matches!(body, TaskBody::TrainShard(_)));
    assert!(harness.queue.is_empty());
    (harness, done, lost)
}

fn tick(harness: &mut Harness, ms: u64) {
    let now = harness.state.unix_ms;
    harness.append(Event::Tick { unix_ms: now + ms });
}

#[test]
fn a_lost_task_is_requeued_despite_stray_outcomes() {
    let (mut harness, done, lost) = lost();
    for _ in 0..STALL_MS / 10_000 + 1 {
        tick(&mut harness, 10_000);
        // Of a task that nobody waits for.
        harness.say(done.key, turn(&[1], &[-0.5], &[(0, 1)]));
    }
    assert!(harness.queue.values().any(|task| task.key == lost.key), "it is requeued");
    to_the_end(&mut harness);
}

#[test]
fn progress_of_another_run_does_not_hide_a_lost_task() {
    let (mut harness, _, lost) = lost();
    let mut other = spec("alpha = 1.0");
    other.name = "other".parse().expect("a name");
    let mut put = Vec::new();
    let mut events = vec![Event::Submitted(Box::new(other))];
    for step in 0..40_u64 {
        let mut seq = harness.state.seq;
        for event in std::mem::take(&mut events) {
            seq += 1;
            harness.log.push(event.clone());
            put.extend(harness.state.advance(seq, "other", event));
        }
        // It does what it is asked, all the time.
        let next = put
            .iter()
            .position(|command| matches!(command, Command::PutTask(task) if task.run.as_str() == "other"));
        if let Some(Command::PutTask(task)) = next.map(|at| put.remove(at)) {
            let body = harness.answer(&task);
            events.push(super::outcome(task.key, Some(task.request_fingerprint()), body));
        }
        let tick = Event::Tick { unix_ms: 1_001_000 + 3_000 * step };
        harness.log.push(tick.clone());
        put.extend(harness.state.advance(seq + 1, "all", tick));
    }
    let is_lost_task = |command: &Command| matches!(command, Command::PutTask(task) if task.key == lost.key && task.run == lost.run);
    assert!(put.iter().any(is_lost_task));
}

#[test]
fn a_slow_task_is_requeued_with_back_off() {
    let (mut harness, ..) = lost();
    let mut times = Vec::new();
    for second in 1..=3_600_u64 {
        tick(&mut harness, 1_000);
        if !harness.queue.is_empty() {
            times.push(second);
            harness.queue.clear();
        }
    }
    assert_eq!(times, [60, 180, 420, 900, 1_860]);
}

#[test]
fn a_run_that_makes_progress_or_is_paused_is_not_requeued() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    while harness.run().policy.is_none() {
        harness.work();
    }
    for _ in 0..20 {
        // One task of many is done every 50 s.
        tick(&mut harness, 50_000);
        let (_, task) = harness.queue.pop_first().expect("something is queued");
        harness.finish(&task);
        assert_eq!(harness.run().progress.repeats, 0);
    }
    harness.append(Event::Paused { reason: String::new(), remedy: String::new() });
    for _ in 0..100 {
        tick(&mut harness, 10_000);
    }
    assert!(harness.queue.is_empty() && harness.run().progress.repeats == 0);
}
