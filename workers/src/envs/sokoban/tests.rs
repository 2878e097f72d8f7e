use super::*;
use std::collections::VecDeque;

const ROOM: Sokoban = Sokoban { size: 6, scramble: 6, max_turns: 12, least_turns: 0 };

/// The shortest solution, found by steps alone.
fn solve(sokoban: Sokoban, start: Vec<u8>) -> Option<u32> {
    let mut waiting = VecDeque::from([(start, 0)]);
    let mut seen = HashSet::new();
    while let Some((state, turns)) = waiting.pop_front() {
        for action in 0..4 {
            let next = sokoban.step(&state, &[action]).unwrap();
            if next.success {
                return Some(turns + 1);
            }
            if !next.done && seen.insert(next.observation) {
                waiting.push_back((next.state, turns + 1));
            }
        }
    }
    None
}

#[test]
fn every_level_can_be_solved_in_the_moves_that_made_it_and_no_fewer_than_asked() {
    for sokoban in [
        ROOM,
        Sokoban { size: 9, scramble: 20, max_turns: 25, least_turns: 0 },
        Sokoban { size: 5, scramble: 2, max_turns: 4, least_turns: 0 },
        Sokoban { size: 7, scramble: 80, max_turns: 24, least_turns: 8 },
    ] {
        for seed in 0..300 {
            let start = sokoban.reset(Split::Train, seed).unwrap();
            let turns = solve(sokoban, start.state).unwrap_or_else(|| panic!("seed {seed}"));
            let asked = sokoban.least_turns..=sokoban.scramble.min(sokoban.max_turns);
            assert!(asked.contains(&turns), "seed {seed}: {turns}");
        }
    }
}

#[test]
fn splits_share_no_level() {
    let levels = |split| -> HashSet<Vec<u32>> {
        (0..2000).map(|seed| ROOM.reset(split, seed).unwrap().observation).collect()
    };
    let (train, held_out) = (levels(Split::Train), levels(Split::HeldOut));
    assert!(train.is_disjoint(&held_out));
    assert!(train.len() > 300 && held_out.len() > 50, "{} and {}", train.len(), held_out.len());
}

#[test]
fn backward_is_the_inverse_of_forward() {
    let mut stream = Stream::new(5);
    let mut pulled = 0;
    for _ in 0..2000 {
        let Some(room) = ROOM.candidate(&mut stream) else { continue };
        for movement in MOVES {
            if let Some(before) = ROOM.backward(room, movement) {
                assert_eq!(ROOM.forward(before, movement), room);
                pulled += u32::from(before.box_at != room.box_at);
            }
        }
    }
    assert!(pulled > 50, "pulled={pulled}");
}

#[test]
fn pushes_do_as_they_say() {
    let cell = |row: u32, column: u32| row * 6 + column;
    let room = Room { player: cell(2, 1), box_at: cell(2, 2), target: cell(2, 4) };
    let pushed = ROOM.step(&ROOM.seal(room, 0), &[2]).unwrap();
    assert!(pushed.valid && !pushed.done);
    let solved = ROOM.step(&pushed.state, &[2]).unwrap();
    assert!(solved.done && solved.success && solved.reward == 1.0);
    let against_wall = Room { player: cell(2, 3), box_at: cell(2, 4), target: cell(1, 1) };
    assert_eq!(ROOM.forward(against_wall, (0, 1)), against_wall);
    let into_wall = ROOM.step(&ROOM.seal(room, 0), &[0]).unwrap();
    assert!(into_wall.valid && into_wall.observation == ROOM.observe(room));
}

#[test]
fn a_level_stays_the_same_for_ever() {
    let seen = ROOM.reset(Split::Train, 1).unwrap().observation;
    assert_eq!(seen, [36 + 8, 20 + 9, 4 + 4, 52 + 4 * 7 + 4, 101 + 3 * 7 + 2]);
}

#[test]
fn what_is_no_action_moves_nothing() {
    let start = ROOM.reset(Split::Train, 3).unwrap();
    for tokens in [&[4][..], &[127], &[]] {
        let done = ROOM.step(&start.state, tokens).unwrap();
        assert!(!done.valid && !done.done && done.observation == start.observation);
    }
}

#[test]
fn luck_alone_solves_few_levels() {
    let solved = (0..1000).filter(|seed| {
        let mut stream = Stream::new(seed + 5000);
        let mut now = ROOM.reset(Split::Train, *seed).unwrap();
        while !now.done {
            now = ROOM.step(&now.state, &[stream.below(4) as u32]).unwrap();
        }
        now.success
    });
    let solved = solved.count();
    assert!((10..150).contains(&solved), "solved={solved} of 1000");
}
