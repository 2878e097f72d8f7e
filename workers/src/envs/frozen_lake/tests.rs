use super::*;
use crate::envs::tokens::MOVES;
use std::collections::{HashSet, VecDeque};

const LAKE: FrozenLake = FrozenLake { size: 4, frozen: 0.8, max_turns: 10 };

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
        FrozenLake { size: 8, frozen: 0.7, max_turns: 20 },
        FrozenLake { size: 3, frozen: 0.7, max_turns: 4 },
    ] {
        for seed in 0..500 {
            let start = lake.reset(Split::Train, seed).unwrap();
            let turns = solve(lake, start.state.clone()).unwrap_or_else(|| panic!("seed {seed}"));
            assert!(turns <= lake.max_turns, "seed {seed}");
            assert_eq!(
                Some(turns),
                shortest(lake.size, lake.open(&start.state).unwrap().holes),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn splits_share_no_level() {
    let levels = |split| -> HashSet<Vec<u32>> {
        (0..2000).map(|seed| LAKE.reset(split, seed).unwrap().observation).collect()
    };
    let (train, held_out) = (levels(Split::Train), levels(Split::HeldOut));
    assert!(train.is_disjoint(&held_out));
    assert!(train.len() > 500 && held_out.len() > 100, "{} and {}", train.len(), held_out.len());
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
    let at = State { holes: 0b1000, player: 2, turn: 0 };
    assert_eq!(LAKE.surroundings(at).collect::<Vec<_>>(), [52, 56, 60 + 1, 64 + 2, 36 + 2]);
    let before_goal = State { holes: 0, player: 14, turn: 0 };
    assert_eq!(LAKE.surroundings(before_goal).collect::<Vec<_>>(), [52, 56 + 2, 60 + 3, 64, 36 + 14]);
}

#[test]
fn moves_do_as_they_say() {
    // P . O .
    // . . . .
    let holes = 0b0100;
    let at = |player, turn| LAKE.seal(State { holes, player, turn });
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
fn impossible_settings_are_said() {
    let lake = FrozenLake { max_turns: 3, ..LAKE };
    let error = lake.reset(Split::Train, 1).unwrap_err();
    assert!(matches!(error, EnvError::NoLevel { .. }), "{error}");
}
