//! A full batch waits for the groups that its step would make too old, as long as the run file says.

use std::collections::BTreeMap;

use millrace_coordinator::fold::status;
use millrace_schemas::api::RunState;
use millrace_schemas::{Event, RolloutId, Task, TaskBody};

use super::alpha::{Draws, Timed, spec, wrong_in};
use super::harness::{Harness, replay};
use super::{bytes, take, to_the_end};

/// Rollouts dropped as stale, of a run whose every third prompt takes `slow` times as long.
fn stale(alpha: f64, more: &str, seed: u64, slow: u64) -> (u64, Harness) {
    let mut harness = Harness::submit(&spec(alpha, 6, 8, more), 0);
    Timed::default().play(&mut harness, &mut Draws(seed), slow);
    assert_eq!(wrong_in(&harness), None, "alpha={alpha} {more} seed={seed} slow={slow}");
    let dropped = status::ledger(harness.run()).dropped;
    (dropped.get("stale").copied().unwrap_or(0), harness)
}

#[test]
fn long_rollouts_are_trained_on_where_batches_are_patient() {
    for alpha in [0.5, 1.0, 1.5, 2.0, 3.0] {
        let mut restarted = 0;
        for (seed, slow) in [(0, 3), (1, 5), (2, 9)] {
            restarted += stale(alpha, "", seed, slow).0;
            let (left, harness) = stale(alpha, "patience_ms = 3600000", seed, slow);
            assert_eq!(left, 0, "alpha={alpha} seed={seed} slow={slow}");
            let run = harness.run();
            assert!(run.books.counters.held_ms > 0, "alpha={alpha} slow={slow}: nothing waited");
            // A third of the prompts is slow, and so is a third of what is trained on.
            let mut slow_groups = BTreeMap::new();
            for group in harness.batches().flat_map(|batch| batch.groups) {
                *slow_groups.entry(group.group % 3 == 0).or_insert(0) += 1;
            }
            assert_eq!(slow_groups, [(false, 32), (true, 16)].into(), "alpha={alpha} slow={slow}");
        }
        assert!(restarted > 0, "alpha={alpha}: nothing was stale without patience");
    }
}

/// A generate task of a rollout that has a turn, which no worker finishes. All else is done.
fn with_a_hung_turn(patience_ms: u64) -> (Harness, Task, RolloutId) {
    let mut spec = spec(1.0, 3, 4, &format!("patience_ms = {patience_ms}"));
    spec.evaluate.prompts = 0;
    let mut harness = Harness::submit(&spec, 0);
    let hung = take(&mut harness, |body| matches!(body, TaskBody::Generate(of) if of.prefix.len() > 1));
    let id = hung.key.rollout().expect("a rollout's task");
    to_the_end(&mut harness);
    (harness, hung, id)
}

fn tick(harness: &mut Harness, ms: u64) {
    let unix_ms = harness.state.unix_ms + ms;
    harness.append(Event::Tick { unix_ms });
    to_the_end(harness);
}

#[test]
fn a_hung_rollout_is_waited_for_no_longer_than_the_patience() {
    let (mut harness, _, id) = with_a_hung_turn(5_000);
    let version = harness.run().version();
    assert!(harness.run().held_since_ms.is_some() && harness.run().ready.len() >= 3, "{version}");
    for _ in 0..4 {
        tick(&mut harness, 1_000);
        assert_eq!(harness.run().version(), version);
    }
    tick(&mut harness, 1_000);
    assert!(harness.run().version() > version);
    assert_eq!(harness.run().books.counters.held_ms, 5_000);
    assert_eq!(harness.run().groups.get(&id.group).map(|g| g.rollouts[id.index as usize].attempt), None);
    assert_eq!(harness.run().state, RunState::Finished);
    assert_eq!(status::ledger(harness.run()).dropped, [("stale".to_owned(), 2)].into(), "its group");
}

#[test]
fn what_the_batch_waits_for_is_trained_on_when_it_comes() {
    let (mut harness, hung, id) = with_a_hung_turn(60_000);
    let base = harness.run().version();
    harness.finish(&hung);
    to_the_end(&mut harness);
    let batch = harness.batches().find(|batch| batch.base == base).expect("it is cut");
    assert!(batch.groups.iter().flat_map(|group| &group.rollouts).any(|rollout| rollout.id == id));
    assert!(status::ledger(harness.run()).dropped.is_empty());
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_batch_that_waits_goes_on_when_the_rollout_fails() {
    let (mut harness, hung, _) = with_a_hung_turn(60_000);
    let version = harness.run().version();
    harness.append(Event::DeadLetter { key: hung.key, reason: "broken".into(), exhausted: false });
    to_the_end(&mut harness);
    tick(&mut harness, 1_000);
    assert!(harness.run().version() > version, "its replacement is young");
    assert_eq!(harness.run().state, RunState::Finished);
}

#[test]
fn a_restart_keeps_the_time_that_a_batch_has_waited() {
    let (mut harness, _, _) = with_a_hung_turn(5_000);
    let version = harness.run().version();
    tick(&mut harness, 3_000);
    harness.lose_all(harness.log.len() - 1);
    assert_eq!(bytes(&replay(&harness.log)), bytes(&harness.state));
    // The lost turn is queued again, and another worker has it.
    harness.queue.clear();
    tick(&mut harness, 1_000);
    assert_eq!(harness.run().version(), version);
    tick(&mut harness, 1_000);
    assert!(harness.run().version() > version);
}

#[test]
fn patience_that_cannot_help_is_refused() {
    for (more, remedy) in
        [("order = \"finish_order\"", "oldest_first"), ("redundant_groups = 2", "redundant_groups")]
    {
        let mut spec = spec(1.0, 3, 4, more);
        spec.rollout.patience_ms = 1_000;
        let refusals = spec.refusals();
        let [refusal] = &refusals[..] else { panic!("{refusals:?}") };
        assert_eq!((refusal.field.as_str(), refusal.value.as_str()), ("rollout.patience_ms", "1000"));
        assert!(refusal.remedy.contains(remedy), "{refusal}");
    }
}
