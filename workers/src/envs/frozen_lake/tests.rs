use super::*;
use crate::envs::tokens::MOVES;
use std::collections::{HashSet, VecDeque};

const LAKE: FrozenLake = FrozenLake(FrozenLakeSpec {
    size: 4,
    frozen: 0.8,
    max_turns: 10,
    detours: None,
    view: LakeView::MapOnce,
    surroundings: true,
    slippery: false,
    exploring_starts: false,
});
/// What the shipped run plays: the map and the position, and no more.
const BLIND: FrozenLake = FrozenLake(FrozenLakeSpec {
    size: 5,
    frozen: 0.7,
    max_turns: 12,
    detours: Some(0.5),
    surroundings: false,
    ..LAKE.0
});

/// The shortest way, found on its own: by the environment's steps and nothing else.
fn solve(lake: FrozenLake, start: Vec<u8>) -> Option<u32> {
    let mut waiting = VecDeque::from([(start, 0)]);
    let mut seen = HashSet::new();
    while let Some((state, turns)) = waiting.pop_front() {
        for action in 0..4 {
            let next = lake.step(&state, &[action]).unwrap();
            if next.success {
                return Some(turns + 1);
            }
            if !next.done && seen.insert(lake.open(&next.state).unwrap().player) {
                waiting.push_back((next.state, turns + 1));
            }
        }
    }
    None
}

#[test]
fn every_level_can_be_solved_in_time() {
    for lake in [
        LAKE,
        BLIND,
        FrozenLake(FrozenLakeSpec { size: 8, frozen: 0.7, max_turns: 20, ..LAKE.0 }),
        FrozenLake(FrozenLakeSpec { size: 3, frozen: 0.7, max_turns: 4, ..LAKE.0 }),
    ] {
        for seed in 0..200 {
            let start = lake.reset(Split::Train, seed).unwrap();
            let turns = solve(lake, start.state.clone()).unwrap_or_else(|| panic!("seed {seed}"));
            assert!(turns <= lake.0.max_turns, "seed {seed}");
            assert_eq!(
                Some(turns),
                shortest(lake.0.size, lake.open(&start.state).unwrap().holes, 0),
                "seed {seed}"
            );
        }
    }
}

fn maps(lake: FrozenLake, split: Split, seeds: u64) -> Vec<u64> {
    (0..seeds).map(|seed| lake.open(&lake.reset(split, seed).unwrap().state).unwrap().holes).collect()
}

#[test]
fn no_held_out_map_is_trained_on() {
    let blind = FrozenLake(FrozenLakeSpec { exploring_starts: true, ..BLIND.0 });
    for lake in [LAKE, blind] {
        let train: HashSet<u64> = maps(lake, Split::Train, 2000).into_iter().collect();
        let held_out: HashSet<u64> = maps(lake, Split::HeldOut, 2000).into_iter().collect();
        assert!(train.is_disjoint(&held_out));
        assert!(train.len() > 500 && held_out.len() > 60, "{} and {}", train.len(), held_out.len());
    }
}

#[test]
fn the_share_of_detours_is_as_asked_for() {
    for share in [0.0, 0.5, 1.0] {
        let lake = FrozenLake(FrozenLakeSpec { detours: Some(share), ..BLIND.0 });
        let maps = maps(lake, Split::HeldOut, 400);
        let detours = maps.iter().filter(|holes| shortest(5, **holes, 0) > Some(8)).count();
        // Four standard errors of 400 draws.
        assert!((detours as f64 / 400.0 - share).abs() <= 0.1 * share, "{detours} of 400");
    }
    // Every map of 4 x 4 cells, one by one.
    let ways: HashSet<_> = (0..1u64 << 14).map(|holes| shortest(4, holes << 1, 0)).collect();
    assert_eq!(ways, HashSet::from([None, Some(6)]), "no map of 4 cells a side needs a detour");
}

#[test]
fn without_surroundings_only_the_map_and_the_position_are_seen() {
    let start = BLIND.reset(Split::HeldOut, 1).unwrap();
    let holes = BLIND.open(&start.state).unwrap().holes;
    let map: Vec<u32> = (0..25).map(|cell| 4 + 2 * cell + (holes >> cell & 1) as u32).collect();
    assert_eq!(start.observation[..25], map);
    assert_eq!(start.observation[25..], [4 + 50]);
    assert_eq!(BLIND.step(&start.state, &[0]).unwrap().observation, [4 + 50]);
}

/// Each row's token encodes where the row is from the player, and its holes: decoded, they are the
/// map.
#[test]
fn rows_show_the_map_as_seen_from_the_player() {
    let lake = FrozenLake(FrozenLakeSpec { view: LakeView::CentredRows, ..BLIND.0 });
    let holes = 0b00000_01100_00010_10000_00010u64;
    for player in (0..24u8).filter(|cell| holes >> cell & 1 == 0) {
        let seen: Vec<u32> = lake.seen(FrozenLakeState { holes, player, turn: 0, slip: 0 }).collect();
        assert_eq!(seen.len(), 6);
        assert_eq!(seen[5], 4 + 50 + u32::from(player));
        for (row, token) in (0..5).zip(&seen[..5]) {
            let (ways, column, pattern) = ((token - 79) / 160, (token - 79) / 32 % 5, (token - 79) % 32);
            assert_eq!((ways, column), (row + 4 - u32::from(player) / 5, u32::from(player) % 5));
            assert_eq!(u64::from(pattern), holes >> (5 * row) & 31);
        }
    }
    let (start, before) = (lake.reset(Split::HeldOut, 1).unwrap(), BLIND.reset(Split::HeldOut, 1).unwrap());
    assert_eq!(start.state, before.state, "the maps are the same");
    assert_eq!(start.observation.len(), 6);
    assert_eq!(lake.0.vocabulary(), 79 + 9 * 5 * 32);
}

#[test]
fn exploring_starts_are_for_training_alone() {
    let lake = FrozenLake(FrozenLakeSpec { exploring_starts: true, ..BLIND.0 });
    let starts = |split| -> HashSet<u8> {
        let starts = (0..300).map(|seed| lake.reset(split, seed).unwrap().state);
        starts.map(|state| lake.open(&state).unwrap().player).collect()
    };
    assert_eq!(starts(Split::HeldOut), HashSet::from([0]));
    assert!(starts(Split::Train).len() > 20);
    assert_eq!(maps(lake, Split::Train, 50), maps(BLIND, Split::Train, 50), "the maps are the same");
}

#[test]
fn slippery_ice_goes_ahead_or_aside_with_equal_chance() {
    let lake = FrozenLake(FrozenLakeSpec { slippery: true, ..LAKE.0 });
    let mut went = [0; 16];
    for seed in 0..3000 {
        let at = FrozenLakeState { holes: 0, player: 5, turn: 0, slip: mixed(seed, 2) };
        let next = lake.step(&lake.seal(at), &[2]).unwrap();
        went[usize::from(lake.open(&next.state).unwrap().player)] += 1;
    }
    // Right, up and down of cell 5; five standard errors.
    for cell in [6, 1, 9] {
        assert!((1000 - went[cell] as i32).abs() < 130, "{went:?}");
    }
    assert_eq!(went.iter().sum::<usize>(), went[6] + went[1] + went[9], "never back, never in place");
    // A task that is done twice comes to the same, and later slips differ from the first.
    let start = lake.reset(Split::Train, 1).unwrap();
    assert_eq!(lake.step(&start.state, &[2]), lake.step(&start.state, &[2]));
    let first = lake.open(&start.state).unwrap().slip;
    let second = lake.step(&start.state, &[0]).unwrap();
    assert!(second.done || lake.open(&second.state).unwrap().slip != first);
}

#[test]
fn a_level_stays_the_same_for_ever() {
    let seen = LAKE.reset(Split::Train, 1).unwrap().observation;
    assert_eq!(seen.len(), 21);
    let rows: Vec<String> = seen[..16]
        .chunks(4)
        .zip(0..)
        .map(|(row, y)| {
            let hole = |(token, x): (&u32, u32)| if (token - 4 - 2 * (4 * y + x)) == 1 { 'O' } else { '.' };
            row.iter().zip(0..).map(hole).collect()
        })
        .collect();
    assert_eq!(rows, ["....", "O...", "..O.", "...."]);
    // Left and up the edge, down and right ground; the player in the corner.
    assert_eq!(seen[16..], [52 + 2, 56 + 1, 60, 64 + 2, 36]);
}

#[test]
fn what_lies_around_is_seen() {
    // . . P O
    let at = FrozenLakeState { holes: 0b1000, player: 2, turn: 0, slip: 0 };
    assert_eq!(LAKE.seen(at).collect::<Vec<_>>(), [52, 56, 60 + 1, 64 + 2, 36 + 2]);
    let before_goal = FrozenLakeState { holes: 0, player: 14, turn: 0, slip: 0 };
    assert_eq!(LAKE.seen(before_goal).collect::<Vec<_>>(), [52, 56 + 2, 60 + 3, 64, 36 + 14]);
}

#[test]
fn moves_do_as_they_say() {
    // P . O .
    // . . . .
    let holes = 0b0100;
    let at = |player, turn| LAKE.seal(FrozenLakeState { holes, player, turn, slip: 0 });
    let place = |done: &EnvStepDone| LAKE.open(&done.state).unwrap().player;
    assert_eq!(MOVES.len(), 4);
    for (action, from, to) in [(0, 1, 0), (1, 1, 5), (2, 4, 5), (3, 5, 1), (0, 4, 4), (3, 1, 1)] {
        let done = LAKE.step(&at(from, 0), &[action]).unwrap();
        assert_eq!((place(&done), done.valid, done.done, done.reward), (to, true, false, 0.0));
    }
    let fall = LAKE.step(&at(1, 0), &[2]).unwrap();
    assert!(fall.done && !fall.success && fall.reward == 0.0 && fall.state.is_empty());
    let goal = LAKE.step(&at(14, 0), &[2]).unwrap();
    assert!(goal.done && goal.success && goal.reward == 1.0);
    let late = LAKE.step(&at(14, 9), &[0]).unwrap();
    assert!(late.done && !late.success);
    let thought_first = LAKE.step(&at(1, 0), &[77, 1]).unwrap();
    assert_eq!((place(&thought_first), thought_first.valid), (5, true));
}

#[test]
fn what_is_no_action_moves_nothing() {
    let start = LAKE.reset(Split::Train, 3).unwrap();
    for tokens in [&[4][..], &[127], &[1, 99], &[]] {
        let done = LAKE.step(&start.state, tokens).unwrap();
        assert!(!done.valid && !done.done && done.reward == 0.0);
        assert_eq!(done.observation, start.observation[16..]);
        assert_eq!(LAKE.open(&done.state).unwrap().turn, 1, "a turn has passed");
    }
}

#[test]
fn impossible_settings_are_reported() {
    let lake = FrozenLake(FrozenLakeSpec { max_turns: 3, ..LAKE.0 });
    let error = lake.reset(Split::Train, 1).unwrap_err();
    assert!(matches!(error, EnvError::NoLevel { .. }), "{error}");
}
