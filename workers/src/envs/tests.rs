use millrace_schemas::env_step::{FrozenLakeSpec, LakeView, Latency, SokobanSpec};

use super::*;

fn specs() -> [EnvironmentSpec; 6] {
    [
        EnvironmentSpec::FrozenLake(FrozenLakeSpec::default()),
        EnvironmentSpec::Sokoban(SokobanSpec::default()),
        EnvironmentSpec::Counter { turns: 6, latency: Latency::default() },
        EnvironmentSpec::FrozenLake(FrozenLakeSpec {
            size: 5,
            detours: Some(0.5),
            surroundings: false,
            slippery: true,
            exploring_starts: true,
            ..FrozenLakeSpec::default()
        }),
        EnvironmentSpec::Sokoban(SokobanSpec { walls: 2, ..SokobanSpec::default() }),
        EnvironmentSpec::FrozenLake(FrozenLakeSpec {
            size: 5,
            view: LakeView::CentredRows,
            ..FrozenLakeSpec::default()
        }),
    ]
}

fn task(environment: &EnvironmentSpec, seed: u64, action: EnvAction) -> EnvStepTask {
    EnvStepTask {
        environment: environment.clone(),
        split: Split::Train,
        seed,
        row: None,
        action,
        answers: None,
        prefix: Vec::new(),
    }
}

/// An episode of actions that follow from `seed`, up to its end.
fn play(environment: &EnvironmentSpec, seed: u64) -> Vec<EnvStepDone> {
    let mut stream = millrace_policy::random::Stream::new(seed);
    let mut episode = vec![answer(&task(environment, seed, EnvAction::Reset), None).unwrap()];
    while let Some(last) = episode.last().filter(|last| !last.done) {
        let tokens = vec![stream.below(5) as u32];
        let action = EnvAction::Step { state: last.state.clone(), tokens };
        episode.push(answer(&task(environment, seed, action), None).unwrap());
    }
    episode
}

#[test]
fn names_are_those_of_the_schemas() {
    let spoken = r#"{"name": "arithmetic"}"#;
    let spoken: EnvironmentSpec = serde_json::from_str(spoken).unwrap();
    let rows: EnvironmentSpec = serde_json::from_str(r#"{"name": "dataset", "path": "x"}"#).unwrap();
    let names: Vec<&str> = specs()[..3].iter().chain([&spoken, &rows]).map(EnvironmentSpec::name).collect();
    assert_eq!(names, NAMES);
    assert!(matches!(answer(&task(&spoken, 1, EnvAction::Reset), None), Err(EnvError::NoText { .. })));
    assert!(matches!(answer(&task(&rows, 1, EnvAction::Reset), None), Err(EnvError::NoRows(_))));
}

#[test]
fn a_repeated_episode_is_the_same() {
    for spec in specs() {
        for seed in 0..50 {
            assert_eq!(play(&spec, seed), play(&spec, seed), "{} seed {seed}", spec.name());
        }
    }
}

#[test]
fn an_episode_keeps_to_its_bounds() {
    for spec in specs() {
        let (first, later) = spec.observation_tokens();
        for seed in 0..200 {
            let episode = play(&spec, seed);
            assert!(episode.len() as u32 <= spec.max_turns() + 1);
            assert!(episode[0].observation.len() as u32 <= first);
            for (turn, done) in episode.iter().enumerate() {
                assert!(turn == 0 || done.observation.len() as u32 <= later);
                assert_eq!(done.observation.is_empty(), done.done);
                assert!(done.observation.iter().all(|token| Some(*token) < spec.vocabulary()));
                assert_eq!(done.done, turn + 1 == episode.len());
                assert!(done.reward.is_finite());
            }
        }
    }
}

#[test]
fn damaged_states_are_refused() {
    for spec in specs() {
        let start = answer(&task(&spec, 1, EnvAction::Reset), None).unwrap().state;
        let step = |state: Vec<u8>| answer(&task(&spec, 1, EnvAction::Step { state, tokens: vec![0] }), None);
        assert!(step(start.clone()).is_ok());
        for i in 0..start.len() {
            for bit in 0..8 {
                let mut damaged = start.clone();
                damaged[i] ^= 1 << bit;
                assert!(matches!(step(damaged), Err(EnvError::State { .. })), "{} byte {i}", spec.name());
            }
            assert!(step(start[..i].to_vec()).is_err());
        }
        for other in specs().iter().filter(|other| **other != spec) {
            let theirs = answer(&task(other, 1, EnvAction::Reset), None).unwrap().state;
            assert!(step(theirs).is_err(), "{} took a state of {}", spec.name(), other.name());
        }
    }
}

#[test]
fn a_state_of_other_settings_is_refused() {
    let large = EnvironmentSpec::FrozenLake(FrozenLakeSpec { size: 6, ..FrozenLakeSpec::default() });
    let state = answer(&task(&large, 1, EnvAction::Reset), None).unwrap().state;
    let action = EnvAction::Step { state, tokens: vec![0] };
    assert!(answer(&task(&specs()[0], 1, action), None).is_err());
}
