//! Push one box onto its target, in a walled room. Levels are made by playing backwards from the end, so
//! each can be solved, in at most as many turns as were played. Reward 1 when the box is on its target.

use std::collections::HashSet;

use millrace_schemas::env_step::{EnvStepDone, Split};

use super::tokens::{FIRST_SEEN, MOVES, beside, movement};
use super::{EnvError, Environment, level, state};
use crate::random::Stream;

const NAME: &str = "sokoban";
const KIND: u8 = 2;

/// The environment.
#[derive(Debug, Clone, Copy)]
pub struct Sokoban {
    /// Cells a side, walls included, 5 to 10.
    pub size: u32,
    /// Backward moves that make a level.
    pub scramble: u32,
    /// Turns until the episode is cut off.
    pub max_turns: u32,
    /// Turns that the shortest solution takes at least.
    pub least_turns: u32,
}

/// Cells of the three things in the room, by index, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Room {
    player: u32,
    box_at: u32,
    target: u32,
}

impl Sokoban {
    const fn is_floor(self, cell: u32) -> bool {
        let (row, column) = (cell / self.size, cell % self.size);
        row > 0 && column > 0 && row + 1 < self.size && column + 1 < self.size
    }

    /// The floor cell beside `cell`.
    fn floor_beside(self, cell: u32, movement: (i32, i32)) -> Option<u32> {
        beside(self.size, cell, movement).filter(|cell| self.is_floor(*cell))
    }

    fn random_floor(self, stream: &mut Stream) -> u32 {
        let side = u64::from(self.size - 2);
        let cell = stream.below(side * side) as u32;
        (cell / (self.size - 2) + 1) * self.size + cell % (self.size - 2) + 1
    }

    /// A level by backward play; `None` if the box ended on its target, the player had no place to stand, or there is a
    /// shorter way than asked for.
    fn candidate(self, stream: &mut Stream) -> Option<Room> {
        let target = self.random_floor(stream);
        let player = self.floor_beside(target, MOVES[stream.below(4) as usize])?;
        let mut room = Room { player, box_at: target, target };
        let mut last = (0, 0);
        for _ in 0..self.scramble.min(self.max_turns) {
            // Never straight back: the level would be no harder for it.
            let onward = MOVES.into_iter().filter(|(rows, columns)| (-rows, -columns) != last);
            let before = onward.filter_map(|movement| Some((movement, self.backward(room, movement)?)));
            let count = before.clone().count() as u64;
            let choice = before.clone().nth(stream.below(count.max(1)) as usize)?;
            (last, room) = choice;
        }
        (room.box_at != target && !self.is_solved_early(room)).then_some(room)
    }

    /// Whether fewer turns than [`Self::least_turns`] solve it.
    fn is_solved_early(self, room: Room) -> bool {
        let mut seen = HashSet::from([(room.player, room.box_at)]);
        let mut reached = vec![room];
        for _ in 1..self.least_turns {
            let after = reached.iter().flat_map(|room| MOVES.map(|movement| self.forward(*room, movement)));
            reached = after.filter(|room| seen.insert((room.player, room.box_at))).collect();
            if reached.iter().any(|room| room.box_at == room.target) {
                return true;
            }
        }
        false
    }

    /// The room from which `movement` leads to this one: the player steps back and pulls the box along if
    /// it stands where a push would have left it. `None` if there is no such room.
    fn backward(self, room: Room, (rows, columns): (i32, i32)) -> Option<Room> {
        let from = self.floor_beside(room.player, (-rows, -columns)).filter(|cell| *cell != room.box_at)?;
        let pulls = self.floor_beside(room.player, (rows, columns)) == Some(room.box_at);
        let box_at = if pulls { room.player } else { room.box_at };
        Some(Room { player: from, box_at, ..room })
    }

    /// The room after a move. One against a wall or an immovable box changes nothing.
    fn forward(self, room: Room, movement: (i32, i32)) -> Room {
        let Some(player) = self.floor_beside(room.player, movement) else { return room };
        if player != room.box_at {
            return Room { player, ..room };
        }
        match self.floor_beside(room.box_at, movement) {
            Some(box_at) => Room { player, box_at, ..room },
            None => room,
        }
    }

    fn open(self, bytes: &[u8]) -> Result<(Room, u16), EnvError> {
        let [size, player, box_at, target, low, high] = state::open(NAME, KIND, bytes)?;
        let turn = u16::from_le_bytes([low, high]);
        let room = Room { player: u32::from(player), box_at: u32::from(box_at), target: u32::from(target) };
        let inside = [room.player, room.box_at, room.target].into_iter().all(|cell| self.is_floor(cell));
        let apart = player != box_at && box_at != target;
        if u32::from(size) != self.size || !inside || !apart || u32::from(turn) >= self.max_turns {
            let reason = format!("size={size} of {} {room:?} turn={turn} of {}", self.size, self.max_turns);
            return Err(EnvError::State { environment: NAME, reason });
        }
        Ok((room, turn))
    }

    fn seal(self, room: Room, turn: u16) -> Vec<u8> {
        let [low, high] = turn.to_le_bytes();
        let Room { player, box_at, target } = room;
        state::seal(KIND, &[self.size as u8, player as u8, box_at as u8, target as u8, low, high])
    }

    /// What is seen each turn. With `m` cells a side inside the walls and cells numbered inside them, five
    /// tokens: the target `4 + 2m² + cell`, the box `4 + m² + cell`, the player `4 + cell`, and from
    /// `4 + 3m²` on the way from player to box and then that from box to target, each as `(2m − 1)²` ways.
    fn observe(self, room: Room) -> Vec<u32> {
        let inside = self.size - 2;
        let cells = inside * inside;
        let place = |cell: u32| (cell / self.size - 1, cell % self.size - 1);
        let number = |cell: u32| place(cell).0 * inside + place(cell).1;
        let span = 2 * inside - 1;
        let way = |from: u32, to: u32| {
            let (a, b) = (place(from), place(to));
            (b.0 + inside - 1 - a.0) * span + b.1 + inside - 1 - a.1
        };
        let ways = FIRST_SEEN + 3 * cells;
        vec![
            FIRST_SEEN + 2 * cells + number(room.target),
            FIRST_SEEN + cells + number(room.box_at),
            FIRST_SEEN + number(room.player),
            ways + way(room.player, room.box_at),
            ways + span * span + way(room.box_at, room.target),
        ]
    }
}

impl Environment for Sokoban {
    fn reset(&self, split: Split, seed: u64) -> Result<EnvStepDone, EnvError> {
        let identity = |room: &Room| {
            [self.size, room.player, room.box_at, room.target].map(|number| number as u8).to_vec()
        };
        let room = level::draw(NAME, split, seed, |stream| self.candidate(stream), identity)?;
        Ok(EnvStepDone {
            state: self.seal(room, 0),
            observation: self.observe(room),
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
        let done = success || u32::from(turn) >= self.max_turns;
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

#[cfg(test)]
mod tests;
