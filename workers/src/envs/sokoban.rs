//! Push one box onto its target, in a walled room. Levels are made by playing backwards from the
//! end, so each can be solved, in at most as many turns as were played. Reward 1 when the box is on
//! its target.
//!
//! Levels are held out by what no move changes, their target and walls: player and box go
//! everywhere in an episode, so that start states held out alone would occur in the middle of
//! training episodes.

use std::collections::{HashSet, VecDeque};

use millrace_policy::random::Stream;
use millrace_schemas::env_step::{EnvStepDone, SokobanSpec, Split};

use super::baselines::{Game, Visits, least};
use super::tokens::{FIRST_SEEN, MOVES, beside, movement};
use super::{EnvError, Environment, level, state};

const NAME: &str = "sokoban";
const KIND: u8 = 2;
/// States of rooms with walls inside, which carry them.
const WALLED: u8 = 6;

/// The environment.
#[derive(Debug, Clone, Copy)]
pub struct Sokoban(pub SokobanSpec);

/// Cells of the three things in the room, by index, row by row, and the walls inside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    player: u32,
    box_at: u32,
    target: u32,
    /// One bit for each cell inside the outer walls, row by row.
    walls: u64,
}

impl Sokoban {
    /// Cells a side inside the outer walls.
    const fn inside(self) -> u32 {
        self.0.size - 2
    }

    /// The number of a cell inside the outer walls, row by row; `None` for one of these walls.
    const fn number(self, cell: u32) -> Option<u32> {
        let (row, column) = (cell / self.0.size, cell % self.0.size);
        if row > 0 && column > 0 && row + 1 < self.0.size && column + 1 < self.0.size {
            Some((row - 1) * self.inside() + column - 1)
        } else {
            None
        }
    }

    fn is_floor(self, walls: u64, cell: u32) -> bool {
        self.number(cell).is_some_and(|number| walls >> number & 1 == 0)
    }

    /// The floor cell beside `cell`.
    fn floor_beside(self, walls: u64, cell: u32, movement: (i32, i32)) -> Option<u32> {
        beside(self.0.size, cell, movement).filter(|cell| self.is_floor(walls, *cell))
    }

    fn random_floor(self, walls: u64, stream: &mut Stream) -> u32 {
        let side = u64::from(self.inside());
        loop {
            let cell = stream.below(side * side) as u32;
            if walls >> cell & 1 == 0 {
                return (cell / self.inside() + 1) * self.0.size + cell % self.inside() + 1;
            }
        }
    }

    fn random_walls(self, stream: &mut Stream) -> u64 {
        let cells = u64::from(self.inside() * self.inside());
        let mut walls = 0u64;
        // Submit allows fewer walls than the smallest room has cells.
        while walls.count_ones() < self.0.walls {
            walls |= 1 << stream.below(cells);
        }
        walls
    }

    /// A level by backward play; `None` if the box ended on its target, the player had no place to
    /// stand, or there is a shorter way than asked for.
    fn candidate(self, stream: &mut Stream) -> Option<Room> {
        let walls = self.random_walls(stream);
        let target = self.random_floor(walls, stream);
        let player = self.floor_beside(walls, target, MOVES[stream.below(4) as usize])?;
        let mut room = Room { player, box_at: target, target, walls };
        let mut last = (0, 0);
        for _ in 0..self.0.scramble.min(self.0.max_turns) {
            // Never straight back: the level would be no harder for it.
            let onward = MOVES.into_iter().filter(|(rows, columns)| (-rows, -columns) != last);
            let before = onward.filter_map(|movement| Some((movement, self.backward(room, movement)?)));
            let count = before.clone().count() as u64;
            let choice = before.clone().nth(stream.below(count.max(1)) as usize)?;
            (last, room) = choice;
        }
        (room.box_at != target && !self.is_solved_early(room)).then_some(room)
    }

    /// Whether fewer turns than [`SokobanSpec::least_turns`] solve it.
    fn is_solved_early(self, room: Room) -> bool {
        let mut seen = HashSet::from([(room.player, room.box_at)]);
        let mut reached = vec![room];
        for _ in 1..self.0.least_turns {
            let after = reached.iter().flat_map(|room| MOVES.map(|movement| self.forward(*room, movement)));
            reached = after.filter(|room| seen.insert((room.player, room.box_at))).collect();
            if reached.iter().any(|room| room.box_at == room.target) {
                return true;
            }
        }
        false
    }

    /// The room from which `movement` leads to this one: the player steps back and pulls the box
    /// along if it stands where a push would have left it. `None` if there is no such room.
    fn backward(self, room: Room, (rows, columns): (i32, i32)) -> Option<Room> {
        let beside = |movement| self.floor_beside(room.walls, room.player, movement);
        let from = beside((-rows, -columns)).filter(|cell| *cell != room.box_at)?;
        let pulls = beside((rows, columns)) == Some(room.box_at);
        let box_at = if pulls { room.player } else { room.box_at };
        Some(Room { player: from, box_at, ..room })
    }

    /// The room after a move. One against a wall or an immovable box changes nothing.
    fn forward(self, room: Room, movement: (i32, i32)) -> Room {
        let Some(player) = self.floor_beside(room.walls, room.player, movement) else { return room };
        if player != room.box_at {
            return Room { player, ..room };
        }
        match self.floor_beside(room.walls, room.box_at, movement) {
            Some(box_at) => Room { player, box_at, ..room },
            None => room,
        }
    }

    fn open(self, bytes: &[u8]) -> Result<(Room, u16), EnvError> {
        let ([size, player, box_at, target, low, high], walls) = if self.0.walls == 0 {
            (state::open::<6>(NAME, KIND, bytes)?, 0)
        } else {
            let [size, player, box_at, target, low, high, walls @ ..] =
                state::open::<14>(NAME, WALLED, bytes)?;
            ([size, player, box_at, target, low, high], u64::from_le_bytes(walls))
        };
        let turn = u16::from_le_bytes([low, high]);
        let [player, box_at, target] = [player, box_at, target].map(u32::from);
        let room = Room { player, box_at, target, walls };
        let inside = [player, box_at, target].into_iter().all(|cell| self.is_floor(walls, cell));
        let apart = player != box_at && box_at != target;
        let cells = self.inside() * self.inside();
        let fits = u32::from(size) == self.0.size
            && walls.count_ones() == self.0.walls
            && walls.checked_shr(cells).unwrap_or(0) == 0;
        if !fits || !inside || !apart || u32::from(turn) >= self.0.max_turns {
            let (expected, turns) = (self.0.size, self.0.max_turns);
            let reason = format!("size={size} of {expected} {room:?} turn={turn} of {turns}");
            return Err(EnvError::State { environment: NAME, reason });
        }
        Ok((room, turn))
    }

    fn seal(self, room: Room, turn: u16) -> Vec<u8> {
        let [low, high] = turn.to_le_bytes();
        let Room { player, box_at, target, walls } = room;
        let body = [self.0.size as u8, player as u8, box_at as u8, target as u8, low, high];
        if self.0.walls == 0 {
            state::seal(KIND, &body)
        } else {
            state::seal(WALLED, &[&body[..], &walls.to_le_bytes()].concat())
        }
    }

    /// What is seen each turn. With `m` cells a side inside the walls and cells numbered inside
    /// them, five tokens: the target `4 + 2m² + cell`, the box `4 + m² + cell`, the player `4 +
    /// cell`, and from `4 + 3m²` on the way from player to box and then that from box to target,
    /// each as `(2m − 1)²` ways.
    fn observe(self, room: Room) -> Vec<u32> {
        let inside = self.inside();
        let cells = inside * inside;
        let place = |cell: u32| (cell / self.0.size - 1, cell % self.0.size - 1);
        let number = |cell: u32| place(cell).0 * inside + place(cell).1;
        let way = |from: u32, to: u32| {
            let (a, b) = (place(from), place(to));
            (b.0 + inside - 1 - a.0) * self.span() + b.1 + inside - 1 - a.1
        };
        let ways = FIRST_SEEN + 3 * cells;
        vec![
            FIRST_SEEN + 2 * cells + number(room.target),
            FIRST_SEEN + cells + number(room.box_at),
            FIRST_SEEN + number(room.player),
            ways + way(room.player, room.box_at),
            ways + self.span() * self.span() + way(room.box_at, room.target),
        ]
    }

    /// Cells from one side of the room to the other, in either direction.
    const fn span(self) -> u32 {
        2 * self.inside() - 1
    }

    /// The walls inside the room, once: `4 + 3m² + 2(2m − 1)² + cell` each.
    fn walls(self, room: Room) -> impl Iterator<Item = u32> {
        let cells = self.inside() * self.inside();
        let first = FIRST_SEEN + 3 * cells + 2 * self.span() * self.span();
        (0..cells).filter(move |cell| room.walls >> cell & 1 == 1).map(move |cell| first + cell)
    }
}

impl Environment for Sokoban {
    fn reset(&self, split: Split, seed: u64) -> Result<EnvStepDone, EnvError> {
        let identity = |room: &Room| {
            let target = [self.0.size as u8, room.target as u8, self.0.walls as u8];
            [&target[..], &room.walls.to_le_bytes()].concat()
        };
        let room = level::draw(NAME, split, seed, |stream| self.candidate(stream), identity)?;
        Ok(EnvStepDone {
            state: self.seal(room, 0),
            observation: self.walls(room).chain(self.observe(room)).collect(),
            reward: 0.0,
            done: false,
            success: false,
            valid: true,
            ..EnvStepDone::default()
        })
    }

    fn step(&self, state: &[u8], tokens: &[u32]) -> Result<EnvStepDone, EnvError> {
        let (room, turn) = self.open(state)?;
        let action = movement(tokens);
        let room = action.map_or(room, |movement| self.forward(room, movement));
        let turn = turn + 1;
        let success = room.box_at == room.target;
        let done = success || u32::from(turn) >= self.0.max_turns;
        let (state, observation) =
            if done { (Vec::new(), Vec::new()) } else { (self.seal(room, turn), self.observe(room)) };
        Ok(EnvStepDone {
            state,
            observation,
            reward: f64::from(u8::from(success)),
            done,
            success,
            valid: action.is_some(),
            ..EnvStepDone::default()
        })
    }
}

impl Game for Sokoban {
    const REFLEXES: [&'static str; 2] = [
        "pushes the box towards its target where it stands behind it, else goes nearer to a cell behind it; the best order of \
         24 moves",
        "the same, and prefers rooms that it saw least often",
    ];

    fn reflex(&self, state: &[u8], order: [u32; 4], visits: Option<&mut Visits>) -> Result<u32, EnvError> {
        let (room, _) = self.open(state)?;
        let size = self.0.size;
        let apart = |a: u32, b: u32| (a / size).abs_diff(b / size) + (a % size).abs_diff(b % size);
        let key = |room: Room| u64::from(room.box_at * size * size + room.player);
        let mut none = Visits::new();
        let visits = visits.unwrap_or(&mut none);
        *visits.entry(key(room)).or_default() += 1;
        // Cells from which a push brings the box nearer to its target.
        let pushes = MOVES.into_iter().filter_map(|(rows, columns)| {
            let to = self.floor_beside(room.walls, room.box_at, (rows, columns))?;
            let from = self.floor_beside(room.walls, room.box_at, (-rows, -columns))?;
            (apart(to, room.target) < apart(room.box_at, room.target)).then_some(from)
        });
        let pushes: Vec<u32> = pushes.collect();
        Ok(least(order, |action| {
            let next = self.forward(room, movement(&[action])?);
            let nearer = apart(next.box_at, next.target) < apart(room.box_at, room.target);
            let to_push = pushes.iter().map(|from| apart(next.player, *from)).min().unwrap_or(0);
            let may = next != room && (next.box_at == room.box_at || nearer);
            may.then(|| (!nearer, visits.get(&key(next)).copied().unwrap_or(0), to_push))
        }))
    }

    fn shortest_path(&self, state: &[u8]) -> Result<u32, EnvError> {
        let (room, _) = self.open(state)?;
        let mut seen = HashSet::from([(room.player, room.box_at)]);
        let mut waiting: VecDeque<(Room, Option<u32>)> = [(room, None)].into();
        while let Some((room, first)) = waiting.pop_front() {
            for (movement, action) in MOVES.into_iter().zip(0..) {
                let next = self.forward(room, movement);
                let first = first.unwrap_or(action);
                if next.box_at == next.target {
                    return Ok(first);
                }
                if seen.insert((next.player, next.box_at)) {
                    waiting.push_back((next, Some(first)));
                }
            }
        }
        // It was pushed to where nothing helps.
        Ok(0)
    }
}

#[cfg(test)]
mod tests;
