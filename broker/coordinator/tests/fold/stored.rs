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
fn trained(world: &World) -> Vec<millrace_schemas::train_shard::BatchRollout> {
    world.batches().flat_map(|batch| batch.groups).flat_map(|group| group.rollouts).collect()
}

#[test]
fn groups_go_on_where_others_were() {
    let mut world = World::submit(&from_stored(0.5), 0);
    to_the_end(&mut world);
    let run = world.run();
    assert_eq!(run.state, RunState::Finished, "{:?}", run.reason);
    assert_eq!(status::ledger(run).trained, 30 * 3 * 3);
    let all = trained(&world);
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
        // Three tokens a turn in this world, after the first two, and three turns at most.
        let skipped = (prefix.len() - 2) / 3;
        assert!((1..=2).contains(&skipped) && skipped + rollout.turns.len() <= 3, "{rollout:?}");
    }
    // Those that they follow are trained too, but for the last ones.
    assert!(unknown.len() <= 4, "{unknown:?} are no ways that were gone");
    for point in &run.books.curve {
        let made = |batch: &Batch| batch.base.0 + 1 == point.version;
        let groups = world.batches().find(made).expect("a batch for each version").groups;
        let rollouts = || groups.iter().flat_map(|group| &group.rollouts);
        let mut told: Vec<_> = rollouts().filter(|rollout| rollout.turns[0].at == 2).collect();
        if told.is_empty() {
            told = rollouts().collect();
        }
        let solved = told.iter().filter(|rollout| rollout.success).count();
        assert_eq!(point.success, solved as f64 / told.len() as f64, "v{}", point.version);
    }
    let stored = status::status(run).stored_turns.expect("it is on");
    assert!(stored.groups > 0 && stored.rollouts <= 4, "{stored:?}");
}

#[test]
fn a_restart_changes_nothing_of_them() {
    let spec = from_stored(0.7);
    let mut whole = World::submit(&spec, 0);
    to_the_end(&mut whole);
    for every in [1, 3, 11] {
        let mut world = World::submit(&spec, every);
        to_the_end(&mut world);
        assert_eq!(bytes(&world.state), bytes(&replay(&world.log)), "restart_every={every}");
        assert_eq!(status::ledger(world.run()), status::ledger(whole.run()), "restart_every={every}");
    }
}

#[test]
fn without_a_share_nothing_is_kept() {
    let mut world = World::submit(&spec("alpha = 1.0"), 0);
    to_the_end(&mut world);
    assert_eq!(world.run().stored, millrace_coordinator::fold::stored::Stored::default());
    assert!(trained(&world).iter().all(|rollout| rollout.turns[0].at == 2));
}
