//! What a run asks of its workers.

use millrace_coordinator::fold::demand;
use millrace_schemas::Stage;

use super::harness::Harness;
use super::spec;

/// Rollouts of one to three turns and two rewards: the means are known from the first that is
/// finished, and what is in play counts by the turns that it has.
#[test]
fn a_demand_counts_what_is_in_play_by_its_turns() {
    let mut harness = Harness::submit(&spec("alpha = 1.0"), 0);
    let (mut measured, mut shares) = (0, Vec::new());
    for _ in 0..2_000 {
        let demands = demand::of(&harness.state);
        let Some(demand) = demands.first() else { break };
        let run = harness.run();
        let in_play = run.groups.iter().filter(|(number, _)| !run.ready.contains(number));
        let turns: Vec<usize> =
            in_play.flat_map(|(_, group)| &group.rollouts).map(|rollout| rollout.turns.len()).collect();
        if demand.per_rollout.is_empty() {
            assert_eq!(demand.played, 0.0, "nothing is known of a rollout's length yet");
        } else {
            measured += 1;
            let turns_each = demand.per_rollout[&Stage::Generate];
            assert!((1.0..=3.0).contains(&turns_each), "{turns_each}");
            assert_eq!(demand.per_rollout[&Stage::EnvStep], turns_each + 1.0);
            assert_eq!(demand.per_rollout[&Stage::Reward], 2.0);
            let share = turns.iter().sum::<usize>() as f64 / turns.len().max(1) as f64 / turns_each;
            assert!((demand.played - share.min(1.0)).abs() < 1e-12, "{} for turns={turns:?}", demand.played);
            shares.push(demand.played);
        }
        if !harness.work() {
            break;
        }
    }
    assert!(measured > 100, "measured={measured}");
    assert!(shares.iter().any(|share| *share > 0.5) && shares.iter().any(|share| *share < 0.2));
}
