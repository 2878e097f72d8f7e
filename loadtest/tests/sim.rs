//! The simulator: a seed gives one history, and a fixed set of seeds leaves nothing to be found.

use millrace_loadtest::checkers;
use millrace_loadtest::sim::scenario::Scenario;
use millrace_loadtest::sim::{play, scenario_of};

/// Seeds that `make test` plays. `make sim` plays as many as it is told.
const SEEDS: u64 = 6;

/// Seeds that once led to a finding, and what it was.
const REGRESSIONS: [(u64, &str); 5] = [
    (459, BOOKED_TWICE),
    (513, BOOKED_TWICE),
    (755, BOOKED_TWICE),
    (1035, BOOKED_TWICE),
    (1377, BOOKED_TWICE),
];

const BOOKED_TWICE: &str =
    "a rollout that was dropped after a power loss, and proved to be trained before it, was booked twice";

fn leaves_nothing_to_be_found(seed: u64) {
    let played = play(seed, scenario_of(seed, &Scenario::shipped())).expect("the simulator works");
    let findings: Vec<String> = checkers::check(&played.history).iter().map(ToString::to_string).collect();
    let again = format!("millrace-loadtest sim --seed {seed}");
    assert!(findings.is_empty(), "{}\nagain: {again}", findings.join("\n"));
}

#[test]
fn a_seed_gives_one_history() {
    for seed in 0..2 {
        let hash = || play(seed, scenario_of(seed, &Scenario::shipped())).expect("the simulator works").hash;
        assert_eq!(hash(), hash(), "seed {seed}");
    }
}

#[test]
fn fixed_seeds_leave_nothing_to_be_found() {
    (0..SEEDS).for_each(leaves_nothing_to_be_found);
}

#[test]
fn what_was_found_once_stays_mended() {
    for (seed, _) in REGRESSIONS {
        leaves_nothing_to_be_found(seed);
    }
}
