//! Costs of a history that is small enough to be counted by hand.

use millrace_schemas::PolicyVersion;
use millrace_schemas::api::{Ledger, RunState, Status};
use millrace_schemas::counters::RunCounters;

use super::*;

fn run() -> RunId {
    "run".parse().unwrap()
}

fn played(seconds: f64) -> Played {
    let status = Status {
        run: run(),
        state: RunState::Finished,
        reason: None,
        remedy: None,
        version: PolicyVersion(1),
        steps: 1,
        alpha: 1.0,
        started_unix_ms: 0,
        now_unix_ms: 0,
        quiet_ms: 0,
        held_for_ms: 0,
        curve: vec![],
        evaluations: vec![],
        staleness: vec![],
        counters: RunCounters::default(),
        groups_in_flight: 0,
        groups_ready: 0,
        window_groups: 0,
        tasks: BTreeMap::new(),
        wasted_us: BTreeMap::new(),
        busy_us: BTreeMap::new(),
        metrics: BTreeMap::new(),
        ledger: Ledger::default(),
        domains: vec![],
        stored_turns: None,
    };
    Played { seed: 1, from_s: 0.0, to_s: seconds, success: None, status }
}

/// A turn of ten tokens of the rollout `group`, in this attempt.
fn turn(at_s: f64, group: u64, attempt: u32) -> ObservedTurn {
    let rollout = RolloutId { group, index: 0, attempt };
    ObservedTurn { at_s, run: run(), key: TaskKey::Generate { rollout, turn: 1 }, tokens: 10 }
}

fn trained(rollouts: &[(u64, u32)]) -> Trained {
    rollouts
        .iter()
        .map(|(group, attempt)| (run(), RolloutId { group: *group, index: 0, attempt: *attempt }))
        .collect()
}

fn fault(at_s: f64, until_s: f64, role: Role) -> Injected {
    Injected { at_s, until_s, kind: Kind::Kill, role, names: vec![] }
}

/// Ten tokens a second for ten seconds.
fn undisturbed() -> (Vec<Played>, Vec<ObservedTurn>, Trained) {
    let seen = (0..10_u32).map(|i| turn(f64::from(i) + 0.5, i.into(), 0)).collect();
    (vec![played(10.0)], seen, trained(&(0..10).map(|i| (i, 0)).collect::<Vec<_>>()))
}

#[test]
fn a_pause_costs_its_length_and_all_costs_add_up() {
    let (runs, seen, all) = undisturbed();
    let plain = Account { runs: &runs, seen: &seen, trained: &all };
    // Nothing from 4.5 to 9.5: the same run in 15 seconds.
    let late: Vec<ObservedTurn> = seen
        .iter()
        .map(|s| ObservedTurn { at_s: if s.at_s > 4.6 { s.at_s + 5.0 } else { s.at_s }, ..s.clone() })
        .collect();
    let longer = [played(15.0)];
    let disturbed = Account { runs: &longer, seen: &late, trained: &all };
    let costs = count(&[fault(4.6, 8.0, Role::Generate)], &disturbed, &plain);
    assert!((costs.rate - 10.0).abs() < 1e-9);
    let row = &costs.rows[0];
    // At work until the next turn is seen at 10.5, when ten tokens had come.
    assert!((row.seconds - (10.5 - 4.6 - 1.0)).abs() < 1e-9, "{row:?}");
    assert!((row.seconds + costs.between_s - 5.0).abs() < 1e-9, "{costs:?}");
    assert!(row.tokens.abs() < 1e-9);
}

#[test]
fn tokens_of_a_rollout_that_began_anew_and_of_a_second_outcome_are_lost() {
    let (runs, seen, all) = undisturbed();
    let plain = Account { runs: &runs, seen: &seen, trained: &all };
    let twice = [turn(1.0, 1, 0), turn(2.0, 1, 1), turn(3.0, 1, 1), turn(4.0, 2, 0)];
    let only = trained(&[(1, 1), (2, 0)]);
    let five = [played(5.0)];
    let disturbed = Account { runs: &five, seen: &twice, trained: &only };
    let faults = [fault(1.5, 1.8, Role::Generate), fault(2.5, 2.6, Role::Train)];
    let costs = count(&faults, &disturbed, &plain);
    let of = |role| costs.rows.iter().find(|row| row.role == role).map(|row| row.tokens);
    // The rollout restarted at 2.0, while the first fault was at work; the repetition counts for
    // the last fault.
    assert_eq!((of(Role::Generate), of(Role::Train)), (Some(10.0), Some(10.0)));
    let total: f64 = costs.rows.iter().map(|row| row.seconds).sum::<f64>() + costs.between_s;
    assert!((total - (5.0 - 2.0)).abs() < 1e-9, "20 useful tokens are worth 2 of 5 seconds: {costs:?}");
}
