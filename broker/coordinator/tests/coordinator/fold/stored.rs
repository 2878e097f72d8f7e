//! Groups that start from turns of earlier rollouts.

use super::*;

fn from_stored(share: f64) -> RunSpec {
    let mut spec =
        spec(&format!("stored_turns = {{ share = {share}, keep = 4, learnt = 1.0 }}\nalpha = 1.0"));
    spec.steps = 30;
    spec.rollout.group_size = 3;
    spec
}

/// The rollouts of all batches.
fn trained(harness: &Harness) -> Vec<millrace_schemas::train_shard::BatchRollout> {
    harness.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts).collect()
}

#[test]
fn groups_continue_from_stored_turns() {
    let mut harness = Harness::submit(&from_stored(0.5), 0);
    to_the_end(&mut harness);
    let run = harness.run();
    assert_eq!(run.state, RunState::Finished, "{:?}", run.reason);
    assert_eq!(status::ledger(run).trained, 30 * 3 * 3);
    let all = trained(&harness);
    // What is seen first has two tokens.
    let (begun, started): (Vec<_>, Vec<_>) = all.iter().partition(|rollout| rollout.turns[0].at == 2);
    assert!(started.len() > 20, "{} of {} started from a stored turn", started.len(), all.len());
    let mut unknown = BTreeSet::new();
    for rollout in &started {
        let prefix = &rollout.tokens[..rollout.turns[0].at as usize];
        let before = begun.iter().any(|other| {
            other.success && other.tokens.len() > prefix.len() && other.tokens.starts_with(prefix)
        });
        if !before {
            unknown.insert(prefix);
        }
        // Three tokens a turn in this harness, after the first two, and three turns at most.
        let skipped = (prefix.len() - 2) / 3;
        assert!((1..=2).contains(&skipped) && skipped + rollout.turns.len() <= 3, "{rollout:?}");
    }
    // Those that they follow are trained too, but for the last ones.
    assert!(unknown.len() <= 4, "{unknown:?} are no ways that were gone");
    for point in &run.books.curve {
        let made = |batch: &Batch| batch.base.0 + 1 == point.version;
        let groups = harness.batches().find(made).expect("a batch for each version").groups;
        let rollouts = || groups.iter().flat_map(|group| &group.rollouts);
        let mut counted: Vec<_> = rollouts().filter(|rollout| rollout.turns[0].at == 2).collect();
        if counted.is_empty() {
            counted = rollouts().collect();
        }
        let solved = counted.iter().filter(|rollout| rollout.success).count();
        assert_eq!(point.success, solved as f64 / counted.len() as f64, "v{}", point.version);
    }
    let stored = status::status(run).stored_turns.expect("it is on");
    assert!(stored.groups > 0 && stored.rollouts <= 4, "{stored:?}");
}

#[test]
fn a_restart_changes_no_stored_turn() {
    let spec = from_stored(0.7);
    let mut whole = Harness::submit(&spec, 0);
    to_the_end(&mut whole);
    for every in [1, 3, 11] {
        let mut harness = Harness::submit(&spec, every);
        to_the_end(&mut harness);
        assert_eq!(bytes(&harness.state), bytes(&replay(&harness.log)), "restart_every={every}");
        assert_eq!(status::ledger(harness.run()), status::ledger(whole.run()), "restart_every={every}");
    }
}

#[test]
fn without_a_share_nothing_is_kept() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    to_the_end(&mut harness);
    assert_eq!(harness.run().stored, millrace_coordinator::fold::stored::StoredTurns::default());
    assert!(trained(&harness).iter().all(|rollout| rollout.turns[0].at == 2));
}
