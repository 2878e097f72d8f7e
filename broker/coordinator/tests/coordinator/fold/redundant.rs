//! Redundant groups, and groups that are filtered.

use millrace_coordinator::fold::rollout::Group;
use millrace_schemas::Stage;
use millrace_schemas::submit::from_json;

use super::*;

const STEPS: u64 = 6;
const TRAINED: u64 = STEPS * 3 * 2;

#[test]
fn surplus_groups_of_a_full_batch_are_dropped_at_once() {
    let mut harness = Harness::submit(&spec("alpha = 0.0\nredundant_groups = 2"), 0);
    let mut left_over = 0;
    for _ in 0..200_000 {
        let run = harness.run();
        if run.training.as_ref().is_some_and(|training| training.makes > PolicyVersion(0)) {
            assert!(run.groups.is_empty() && run.ready.is_empty(), "nobody can be trained on any more");
            let playing = |stage| matches!(stage, Stage::Generate | Stage::EnvStep | Stage::Reward);
            assert!(harness.queue.values().all(|task| !playing(task.stage())), "no worker takes them up");
        } else if run.policy.is_some() && run.state == RunState::Running && run.evaluation.is_none() {
            left_over = left_over.max(run.groups.len());
        }
        assert!(status::ledger(run).balanced());
        if !harness.work() {
            break;
        }
    }
    let run = harness.run();
    assert_eq!((run.state, left_over), (RunState::Finished, 5));
    let ledger = status::ledger(run);
    let surplus = STEPS * 2 * 2;
    assert_eq!((ledger.trained, ledger.dropped["surplus"], ledger.in_flight), (TRAINED, surplus, 0));
    assert_eq!((ledger.dropped.len(), ledger.admitted), (1, TRAINED + surplus));
    let batches = harness.blobs.values().filter_map(|blob| decode::<Batch>("batch", blob).ok());
    let trained = batches.flat_map(|batch| batch.groups).flat_map(|group| group.rollouts);
    assert_eq!(
        run.books.counters.trained_turns,
        trained.map(|rollout| rollout.turns.len() as u64).sum::<u64>()
    );
    assert!(run.books.counters.surplus_turns < 3 * surplus, "they were still playing");
    assert!(harness.staleness.iter().all(|staleness| *staleness == 0));
}

/// A purge that a crash prevented leaves tasks whose outcomes are not awaited.
#[test]
fn a_restart_drops_and_trains_the_same() {
    for every in [1, 2, 3, 5, 7, 11, 50] {
        let mut harness = Harness::submit(&spec("alpha = 0.0\nredundant_groups = 2"), every);
        to_the_end(&mut harness);
        assert_eq!(bytes(&harness.state), bytes(&replay(&harness.log)), "every={every}");
        let ledger = status::ledger(harness.run());
        assert_eq!((ledger.trained, ledger.dropped["surplus"]), (TRAINED, STEPS * 2 * 2), "every={every}");
        assert_eq!(harness.versions, (0..=STEPS).map(PolicyVersion).collect::<Vec<_>>());
    }
}

/// They are not lost: they are in the next batches.
#[test]
fn redundant_groups_of_an_asynchronous_run_are_trained_later() {
    let mut harness = Harness::submit(&spec("alpha = 1.0\nredundant_groups = 2"), 0);
    to_the_end(&mut harness);
    let (run, ledger) = (harness.run(), status::ledger(harness.run()));
    assert_eq!((run.state, ledger.trained), (RunState::Finished, TRAINED));
    assert!(ledger.dropped.get("surplus").is_none_or(|surplus| *surplus <= 2 * 2), "{ledger:?}");
    assert!(harness.staleness.iter().all(|staleness| *staleness <= 1));
}

#[test]
fn groups_without_signal_are_defined_by_the_run_file() {
    let group = |rewards: [f64; 4]| {
        let mut group = Group::new(&spec("").part(0), 0, None, 4, PolicyVersion(0));
        for (rollout, reward) in group.rollouts.iter_mut().zip(rewards) {
            rollout.scores = vec![Some(reward), Some(0.0)];
        }
        group
    };
    let left_out = |settings: &str, rewards| {
        let filter = format!("alpha = 1.0\nfilter = \"equal_rewards\"\n{settings}");
        group(rewards).is_without_signal(&spec(&filter))
    };
    assert!(left_out("", [0.1; 4]) && left_out("", [0.0; 4]));
    assert!(!left_out("", [0.0, 0.0, 0.0, 0.001]));
    assert!(left_out("filter_deviation = 0.01", [0.0, 0.0, 0.0, 0.001]));
    let means = "filter_means = [0.25, 0.75]";
    assert!(left_out(means, [0.0, 0.0, 0.0, 1.0]), "too hard: its mean is the bound");
    assert!(left_out(means, [1.0, 1.0, 1.0, 0.0]), "too easy");
    assert!(!left_out(means, [1.0, 1.0, 0.0, 0.0]));
    assert!(left_out(means, [0.5; 4]), "equal all the same");
}

#[test]
fn invalid_filters_and_redundancy_are_refused() {
    let good = serde_json::to_value(spec("alpha = 1.0\nfilter = \"equal_rewards\"")).expect("a run file");
    for (field, value, remedy) in [
        ("filter_deviation", serde_json::json!(-1.0), "rollout.filter_deviation = -1: choose a number"),
        ("filter_means", serde_json::json!([0.5, 0.5]), "rollout.filter_means = [0.5, 0.5]: no group"),
        ("filter_means", serde_json::json!([-1e300, 0.5]), "rollout.filter_means[0]"),
        ("redundant_groups", serde_json::json!(65_537), "rollout.redundant_groups = 65537: choose"),
    ] {
        let mut file = good.clone();
        file["rollout"][field] = value;
        let error = from_json(file.to_string().as_bytes()).expect_err(field).to_string();
        assert!(error.contains(remedy), "{error}");
    }
    let mut file = good.clone();
    file["rollout"]["filter_means"] = serde_json::json!([0.1, 0.9]);
    assert!(from_json(file.to_string().as_bytes()).is_ok());
    file["rollout"]["filter"] = serde_json::json!("none");
    let error = from_json(file.to_string().as_bytes()).expect_err("no filter").to_string();
    assert!(error.contains("rollout.filter = none") && error.contains("\"equal_rewards\""), "{error}");
}
