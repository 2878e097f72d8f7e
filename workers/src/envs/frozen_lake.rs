//! Cross a frozen lake from the top left corner to the bottom right one without falling into a hole. Not
//! slippery; a move against the edge stays. Reward 1 at the goal.

use millrace_schemas::env_step::{EnvStepDone, Split};

use super::tokens::{FIRST_SEEN, MOVES, beside, movement};
use super::{EnvError, Environment, level, state};
use crate::random::Stream;

const NAME: &str = "frozen_lake";
const KIND: u8 = 1;
/// Cells a side at most: a map is a `u64`.
const MAX_SIZE: u32 = 8;

/// The environment.
#[derive(Debug, Clone, Copy)]
pub struct FrozenLake {
    /// Cells a side, 2 to 8.
    pub size: u32,
    /// Chance that a cell is frozen rather than a hole.
    pub frozen: f64,
    /// Turns until the episode is cut off.
    pub max_turns: u32,
}

/// Where an episode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    /// One bit a cell, row by row.
    holes: u64,
    /// The player's cell.
    player: u8,
    turn: u16,
}

impl FrozenLake {
    const fn cells(self) -> u32 {
        self.size * self.size
    }

    /// A random map; `None` if it cannot be crossed in time.
    fn candidate(self, stream: &mut Stream) -> Option<u64> {
        let mut holes = 0;
        // Start and goal are never holes, and are drawn nothing for.
        for cell in 1..self.cells() - 1 {
            holes |= u64::from(stream.unit() >= self.frozen) << cell;
        }
        shortest(self.size, holes).filter(|turns| *turns <= self.max_turns).map(|_| holes)
    }

    fn open(self, bytes: &[u8]) -> Result<State, EnvError> {
        let [size, player, low, high, map @ ..] = state::open::<12>(NAME, KIND, bytes)?;
        let holes = u64::from_le_bytes(map);
        let turn = u16::from_le_bytes([low, high]);
        let cells = self.cells();
        let outside = cells < u64::BITS && holes >> cells != 0;
        let ground = u32::from(player) < cells - 1 && holes >> player & 1 == 0;
        if u32::from(size) != self.size || outside || !ground || u32::from(turn) >= self.max_turns {
            let reason =
                format!("size={size} of {} player={player} turn={turn} of {}", self.size, self.max_turns);
            return Err(EnvError::State { environment: NAME, reason });
        }
        Ok(State { holes, player, turn })
    }

    fn seal(self, at: State) -> Vec<u8> {
        let mut body = [0; 12];
        body[0] = self.size as u8;
        body[1] = at.player;
        body[2..4].copy_from_slice(&at.turn.to_le_bytes());
        body[4..].copy_from_slice(&at.holes.to_le_bytes());
        state::seal(KIND, &body)
    }

    /// The whole map, once: for each of the `n` cells, row by row, the token `4 + 2·cell + hole`.
    fn map(self, holes: u64) -> impl Iterator<Item = u32> {
        (0..self.cells()).map(move |cell| FIRST_SEEN + 2 * cell + (holes >> cell & 1) as u32)
    }

    /// What is seen each turn: in the order of the actions `k`, what lies there, `4 + 3n + 4k + (0 ground,
    /// 1 hole, 2 edge, 3 goal)`; then where the player is, `4 + 2n + cell`.
    fn surroundings(self, at: State) -> impl Iterator<Item = u32> {
        let (player, first) = (u32::from(at.player), FIRST_SEEN + 3 * self.cells());
        let seen = move |movement| match beside(self.size, player, movement) {
            None => 2,
            Some(cell) if cell == self.cells() - 1 => 3,
            Some(cell) => (at.holes >> cell & 1) as u32,
        };
        let around = MOVES.into_iter().zip(0..).map(move |(movement, k)| first + 4 * k + seen(movement));
        around.chain([FIRST_SEEN + 2 * self.cells() + player])
    }
}

/// Turns of the shortest way from the first cell to the last; `None` if there is none.
fn shortest(size: u32, holes: u64) -> Option<u32> {
    let cells = size * size;
    let goal = 1u64 << (cells - 1);
    let first_column = (0..size).fold(0, |mask, row| mask | 1u64 << (row * size));
    let last_column = first_column << (size - 1);
    let ground = !holes & (goal | (goal - 1));
    let mut reached = 1u64;
    for turns in 0..=cells {
        if reached & goal != 0 {
            return Some(turns);
        }
        let sideways = (reached & !last_column) << 1 | (reached & !first_column) >> 1;
        reached |= (sideways | reached << size | reached >> size) & ground;
    }
    None
}

impl Environment for FrozenLake {
    fn reset(&self, split: Split, seed: u64) -> Result<EnvStepDone, EnvError> {
        assert!((2..=MAX_SIZE).contains(&self.size), "submit refuses other sizes");
        let identity = |holes: &u64| [&[self.size as u8][..], &holes.to_le_bytes()].concat();
        let holes = level::draw(NAME, split, seed, |stream| self.candidate(stream), identity)?;
        let start = State { holes, player: 0, turn: 0 };
        Ok(EnvStepDone {
            state: self.seal(start),
            observation: self.map(holes).chain(self.surroundings(start)).collect(),
            reward: 0.0,
            done: false,
            success: false,
            valid: true,
            ..EnvStepDone::default()
        })
    }

    fn step(&self, state: &[u8], tokens: &[u32]) -> Result<EnvStepDone, EnvError> {
        let State { holes, player, turn } = self.open(state)?;
        let action = movement(tokens);
        let moved = action.and_then(|movement| beside(self.size, u32::from(player), movement));
        let player = moved.unwrap_or(u32::from(player));
        let success = player == self.cells() - 1;
        let fallen = holes >> player & 1 == 1;
        let at = State { holes, player: player as u8, turn: turn + 1 };
        let done = success || fallen || u32::from(at.turn) >= self.max_turns;
        let (state, observation) =
            if done { (Vec::new(), Vec::new()) } else { (self.seal(at), self.surroundings(at).collect()) };
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
