use millrace_schemas::env_step::{EnvAction, FrozenLakeSpec, SokobanSpec, Split};

use super::*;

fn resets(environment: &EnvironmentSpec, prompts: u64) -> Vec<EnvStepTask> {
    let reset = |seed| EnvStepTask {
        environment: environment.clone(),
        split: Split::HeldOut,
        seed,
        row: None,
        action: EnvAction::Reset,
        answers: None,
        prefix: Vec::new(),
    };
    (0..prompts).map(reset).collect()
}

fn success(baselines: &[Baseline], name: &str) -> f64 {
    baselines.iter().find(|baseline| baseline.name == name).map(|baseline| baseline.success).unwrap()
}

#[test]
fn rules_are_ordered_by_what_they_know() {
    let lake = FrozenLakeSpec {
        size: 5,
        frozen: 0.7,
        max_turns: 10,
        detours: Some(0.5),
        ..FrozenLakeSpec::default()
    };
    let sokoban = SokobanSpec { walls: 2, least_turns: 4, ..SokobanSpec::default() };
    // Of a room with two walls a rule that pushes where it can solves most levels, and not all.
    for (environment, most) in
        [(EnvironmentSpec::FrozenLake(lake), 0.9), (EnvironmentSpec::Sokoban(sokoban), 0.99)]
    {
        let baselines = play(&resets(&environment, 100)).unwrap();
        let of = |name| success(&baselines, name);
        assert!(of("random") < of("reflex"), "{baselines:#?}");
        assert!(of("memoryless_reflex") <= of("reflex"), "{baselines:#?}");
        assert!(of("reflex") < most, "a rule that looks one move ahead does not do: {baselines:#?}");
        assert_eq!(of("shortest_path"), 1.0);
        assert!(baselines.iter().all(|baseline| baseline.name != "best_policy"), "no path is shorter");
        assert!(baselines.iter().all(|baseline| baseline.prompts == 100 && baseline.distinct > 60));
    }
}

/// The figures that shipped runs were once judged by: the rule that never reads the map solves what
/// has no detours.
#[test]
fn a_lake_without_detours_is_solved_by_a_reflex() {
    let lake = EnvironmentSpec::FrozenLake(FrozenLakeSpec { max_turns: 8, ..FrozenLakeSpec::default() });
    let baselines = play(&resets(&lake, 256)).unwrap();
    assert!(success(&baselines, "reflex") > 0.85, "{baselines:#?}");
    assert!(success(&baselines, "memoryless_reflex") > 0.7, "{baselines:#?}");
    assert!(success(&baselines, "random") < 0.05, "{baselines:#?}");
}

#[test]
fn slippery_ice_spares_no_plan() {
    let lake = FrozenLakeSpec { slippery: true, max_turns: 40, ..FrozenLakeSpec::default() };
    let baselines = play(&resets(&EnvironmentSpec::FrozenLake(lake), 200)).unwrap();
    let planned = success(&baselines, "shortest_path");
    assert!((0.05..0.9).contains(&planned), "{baselines:#?}");
    // Who knows that the ice is slippery keeps clear of holes.
    let best = success(&baselines, "best_policy");
    assert!(best > planned + 0.2 && best < 0.9, "{baselines:#?}");
    assert!(best > success(&baselines, "reflex") + 0.1, "{baselines:#?}");
}
