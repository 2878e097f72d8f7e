use super::*;

const ROOM: Sokoban = Sokoban(SokobanSpec { size: 6, scramble: 6, max_turns: 12, least_turns: 0, walls: 0 });
const WALLED: Sokoban = Sokoban(SokobanSpec { walls: 2, least_turns: 3, ..ROOM.0 });

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
            if !next.done && seen.insert(next.observation.clone()) {
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
        WALLED,
        Sokoban(SokobanSpec { size: 9, scramble: 20, max_turns: 25, ..ROOM.0 }),
        Sokoban(SokobanSpec { size: 5, scramble: 2, max_turns: 4, ..ROOM.0 }),
        Sokoban(SokobanSpec { size: 7, scramble: 80, max_turns: 24, least_turns: 8, walls: 3 }),
    ] {
        for seed in 0..150 {
            let start = sokoban.reset(Split::Train, seed).unwrap();
            let turns = solve(sokoban, start.state).unwrap_or_else(|| panic!("seed {seed}"));
            let asked = sokoban.0.least_turns..=sokoban.0.scramble.min(sokoban.0.max_turns);
            assert!(asked.contains(&turns), "seed {seed}: {turns}");
        }
    }
}

/// Every room that play can reach from the start states of `seeds` in training.
fn reachable(sokoban: Sokoban, seeds: std::ops::Range<u64>) -> HashSet<(u64, u32, u32, u32)> {
    let mut seen = HashSet::new();
    for seed in seeds {
        let start = sokoban.reset(Split::Train, seed).unwrap();
        let mut waiting = vec![sokoban.open(&start.state).unwrap().0];
        while let Some(room) = waiting.pop() {
            if seen.insert((room.walls, room.target, room.box_at, room.player)) {
                waiting.extend(MOVES.map(|movement| sokoban.forward(room, movement)));
            }
        }
    }
    seen
}

#[test]
fn no_held_out_level_occurs_anywhere_in_a_training_episode() {
    for sokoban in [ROOM, WALLED, Sokoban(SokobanSpec { size: 5, ..ROOM.0 })] {
        let trained = reachable(sokoban, 0..1000);
        assert!(trained.len() > 500, "{}", trained.len());
        for seed in 0..500 {
            let start = sokoban.reset(Split::HeldOut, seed).unwrap();
            let room = sokoban.open(&start.state).unwrap().0;
            let level = (room.walls, room.target, room.box_at, room.player);
            assert!(!trained.contains(&level), "seed {seed}: {room:?} of {:?}", sokoban.0);
        }
    }
}

#[test]
fn both_splits_have_levels_at_every_size() {
    for size in 5..=10 {
        // Of nine cells two may be walls: with more no level can be solved.
        for walls in [0, 1, if size == 5 { 2 } else { 4 }] {
            let sokoban = Sokoban(SokobanSpec { size, walls, ..ROOM.0 });
            for split in [Split::Train, Split::HeldOut] {
                sokoban.reset(split, 1).unwrap_or_else(|e| panic!("size={size} walls={walls}: {e}"));
            }
        }
    }
}

#[test]
fn walls_are_shown_once_and_stop_player_and_box() {
    let start = WALLED.reset(Split::Train, 3).unwrap();
    let (room, _) = WALLED.open(&start.state).unwrap();
    assert_eq!((start.observation.len(), room.walls.count_ones()), (7, 2));
    let first = 4 + 3 * 16 + 2 * 49;
    let shown = start.observation[..2].iter().map(|token| 1u64 << (token - first)).sum::<u64>();
    assert_eq!(shown, room.walls);
    assert_eq!(WALLED.step(&start.state, &[4]).unwrap().observation.len(), 5);
    // A wall right of the box: neither moves.
    let cell = |row: u32, column: u32| row * 6 + column;
    let walls = 1 << 7 | 1;
    let room = Room { player: cell(2, 2), box_at: cell(2, 3), target: cell(4, 4), walls };
    assert_eq!(WALLED.forward(room, (0, 1)), room);
    assert_eq!(WALLED.forward(Room { player: cell(2, 1), ..room }, (-1, 0)).player, cell(2, 1));
}

#[test]
fn backward_is_the_inverse_of_forward() {
    let mut stream = Stream::new(5);
    let mut pulled = 0;
    for _ in 0..2000 {
        let Some(room) = WALLED.candidate(&mut stream) else { continue };
        for movement in MOVES {
            if let Some(before) = WALLED.backward(room, movement) {
                assert_eq!(WALLED.forward(before, movement), room);
                pulled += u32::from(before.box_at != room.box_at);
            }
        }
    }
    assert!(pulled > 30, "pulled={pulled}");
}

#[test]
fn pushes_do_as_they_say() {
    let cell = |row: u32, column: u32| row * 6 + column;
    let room = Room { player: cell(2, 1), box_at: cell(2, 2), target: cell(2, 4), walls: 0 };
    let pushed = ROOM.step(&ROOM.seal(room, 0), &[2]).unwrap();
    assert!(pushed.valid && !pushed.done);
    let solved = ROOM.step(&pushed.state, &[2]).unwrap();
    assert!(solved.done && solved.success && solved.reward == 1.0);
    let against_wall = Room { player: cell(2, 3), box_at: cell(2, 4), target: cell(1, 1), walls: 0 };
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
