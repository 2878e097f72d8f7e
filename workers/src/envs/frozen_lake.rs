//! Cross a frozen lake from the top left corner to the bottom right one without falling into a
//! hole. A move against the edge stays. Reward 1 at the goal. Maps are held out by their holes.

use millrace_policy::random::Stream;
use millrace_schemas::env_step::{EnvStepDone, FrozenLakeSpec, LakeView, Split};

use super::baselines::{Game, Visits, least};
use super::tokens::{FIRST_SEEN, MOVES, beside, movement};
use super::{EnvError, Environment, level, state};

mod best_policy;

const NAME: &str = "frozen_lake";
const KIND: u8 = 1;
/// States of slippery ice, which carry what the next slip follows from.
const SLIPPERY: u8 = 7;
/// Cells a side at most: a map is a `u64`.
const MAX_SIZE: u32 = 8;

/// The environment.
#[derive(Debug, Clone, Copy)]
pub struct FrozenLake(pub FrozenLakeSpec);

/// The state of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FrozenLakeState {
    /// One bit a cell, row by row.
    holes: u64,
    /// The player's cell.
    player: u8,
    turn: u16,
    /// What the next slip follows from; 0 where the ice is not slippery.
    slip: u64,
}

impl FrozenLake {
    const fn cells(self) -> u32 {
        self.0.size * self.0.size
    }

    /// A random map; `None` if it cannot be crossed in time, or has no detour where it should or
    /// one where it should not.
    fn candidate(self, detour: Option<bool>, stream: &mut Stream) -> Option<u64> {
        let mut holes = 0;
        // Start and goal are never holes, and are drawn nothing for.
        for cell in 1..self.cells() - 1 {
            holes |= u64::from(stream.unit() >= self.0.frozen) << cell;
        }
        let turns = shortest(self.0.size, holes, 0).filter(|turns| *turns <= self.0.max_turns)?;
        detour.is_none_or(|detour| detour == (turns > 2 * (self.0.size - 1))).then_some(holes)
    }

    /// The map of `seed`.
    fn draw(self, split: Split, seed: u64) -> Result<u64, EnvError> {
        let identity = |holes: &u64| [&[self.0.size as u8][..], &holes.to_le_bytes()].concat();
        let mut stream = Stream::new(seed);
        // Decided before the map is drawn: the share is exact however rare such maps are.
        let detour = self.0.detours.map(|share| stream.unit() < share);
        level::draw_from(NAME, split, stream, |stream| self.candidate(detour, stream), identity)
    }

    /// The cell where an episode of `seed` begins.
    fn start(self, split: Split, seed: u64, holes: u64) -> u8 {
        if !self.0.exploring_starts || split == Split::HeldOut {
            return 0;
        }
        // A stream of its own, apart from the map's.
        let mut stream = Stream::new(mixed(seed, 1));
        loop {
            let cell = stream.below(u64::from(self.cells() - 1)) as u32;
            let turns = shortest(self.0.size, holes, cell);
            if holes >> cell & 1 == 0 && turns.is_some_and(|turns| turns <= self.0.max_turns) {
                return cell as u8;
            }
        }
    }

    fn open(self, bytes: &[u8]) -> Result<FrozenLakeState, EnvError> {
        let ([size, player, low, high, map @ ..], slip) = if self.0.slippery {
            let body = state::open::<20>(NAME, SLIPPERY, bytes)?;
            let (head, slip) = body.split_first_chunk::<12>().expect("20 bytes are more than 12");
            (*head, slip.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
        } else {
            (state::open::<12>(NAME, KIND, bytes)?, 0)
        };
        let holes = u64::from_le_bytes(map);
        let turn = u16::from_le_bytes([low, high]);
        let cells = self.cells();
        let outside = cells < u64::BITS && holes >> cells != 0;
        let ground = u32::from(player) < cells - 1 && holes >> player & 1 == 0;
        if u32::from(size) != self.0.size || outside || !ground || u32::from(turn) >= self.0.max_turns {
            let (expected, turns) = (self.0.size, self.0.max_turns);
            let reason = format!("size={size} of {expected} player={player} turn={turn} of {turns}");
            return Err(EnvError::State { environment: NAME, reason });
        }
        Ok(FrozenLakeState { holes, player, turn, slip })
    }

    fn seal(self, at: FrozenLakeState) -> Vec<u8> {
        let mut body = [0; 12];
        body[0] = self.0.size as u8;
        body[1] = at.player;
        body[2..4].copy_from_slice(&at.turn.to_le_bytes());
        body[4..].copy_from_slice(&at.holes.to_le_bytes());
        if self.0.slippery {
            state::seal(SLIPPERY, &[&body[..], &at.slip.to_le_bytes()].concat())
        } else {
            state::seal(KIND, &body)
        }
    }

    /// The whole map, once: for each of the `n` cells, row by row, the token `4 + 2·cell + hole`.
    fn map(self, holes: u64) -> impl Iterator<Item = u32> {
        let once = if self.0.view == LakeView::MapOnce { self.cells() } else { 0 };
        (0..once).map(move |cell| FIRST_SEEN + 2 * cell + (holes >> cell & 1) as u32)
    }

    /// The map as seen from the player, each turn: for each of the `m` rows, from the top, the
    /// token `first_row + (ways·m + column)·2^m + pattern`, where `ways` is how many rows it is
    /// below the player, plus `m − 1`, and the pattern has the bit of each column that is a hole.
    fn rows(self, at: FrozenLakeState) -> impl Iterator<Item = u32> {
        let size = self.0.size;
        let (row, column) = (u32::from(at.player) / size, u32::from(at.player) % size);
        let rows = if self.0.view == LakeView::CentredRows { size } else { 0 };
        (0..rows).map(move |shown| {
            let pattern = (at.holes >> (shown * size)) as u32 & ((1 << size) - 1);
            let ways = shown + size - 1 - row;
            self.0.first_row() + ((ways * size + column) << size) + pattern
        })
    }

    /// What is seen each turn: the rows where the view has them, then where the player is, `4 + 2n
    /// + cell`. With `surroundings` between, in the order of the actions `k`, what is on that side,
    /// `4 + 3n + 4k + (0 ground, 1 hole, 2 edge, 3 goal)`.
    fn seen(self, at: FrozenLakeState) -> impl Iterator<Item = u32> {
        let (player, first) = (u32::from(at.player), FIRST_SEEN + 3 * self.cells());
        let what = move |movement| match beside(self.0.size, player, movement) {
            None => 2,
            Some(cell) if cell == self.cells() - 1 => 3,
            Some(cell) => (at.holes >> cell & 1) as u32,
        };
        let sides = if self.0.surroundings { &MOVES[..] } else { &[] };
        let around = sides.iter().zip(0..).map(move |(movement, k)| first + 4 * k + what(*movement));
        self.rows(at).chain(around).chain([FIRST_SEEN + 2 * self.cells() + player])
    }

    /// Where a move really goes.
    fn slid(self, at: FrozenLakeState, movement: (i32, i32)) -> (i32, i32) {
        if self.0.slippery { slips(movement)[Stream::new(at.slip).below(3) as usize] } else { movement }
    }
}

/// Where a move may go on slippery ice, each with chance 1/3: ahead or to one of the two sides.
const fn slips((rows, columns): (i32, i32)) -> [(i32, i32); 3] {
    [(rows, columns), (columns, rows), (-columns, -rows)]
}

/// The seed of the slip after an action. Rollouts of one prompt that took the same actions slip
/// alike, as retried tasks must. The observation does not show it.
const fn mixed(slip: u64, action: u64) -> u64 {
    let x = (slip ^ action.wrapping_mul(0xbf58_476d_1ce4_e5b9)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Turns of the shortest path from a cell to the last one; `None` if there is none.
fn shortest(size: u32, holes: u64, from: u32) -> Option<u32> {
    let cells = size * size;
    let goal = 1u64 << (cells - 1);
    let first_column = (0..size).fold(0, |mask, row| mask | 1u64 << (row * size));
    let last_column = first_column << (size - 1);
    let ground = !holes & (goal | (goal - 1));
    let mut reached = 1u64 << from;
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
        assert!((2..=MAX_SIZE).contains(&self.0.size), "submit refuses other sizes");
        let holes = self.draw(split, seed)?;
        let slip = if self.0.slippery { mixed(seed, 2) } else { 0 };
        let start = FrozenLakeState { holes, player: self.start(split, seed, holes), turn: 0, slip };
        Ok(EnvStepDone {
            state: self.seal(start),
            observation: self.map(holes).chain(self.seen(start)).collect(),
            reward: 0.0,
            done: false,
            success: false,
            valid: true,
            ..EnvStepDone::default()
        })
    }

    fn step(&self, state: &[u8], tokens: &[u32]) -> Result<EnvStepDone, EnvError> {
        let at = self.open(state)?;
        let action = movement(tokens);
        let from = u32::from(at.player);
        let moved = action.and_then(|movement| beside(self.0.size, from, self.slid(at, movement)));
        let player = moved.unwrap_or(from);
        let success = player == self.cells() - 1;
        let fallen = at.holes >> player & 1 == 1;
        let last = tokens.last().map_or(0, |token| u64::from(*token));
        let slip = if self.0.slippery { mixed(at.slip, 3 + last) } else { 0 };
        let at = FrozenLakeState { player: player as u8, turn: at.turn + 1, slip, ..at };
        let done = success || fallen || u32::from(at.turn) >= self.0.max_turns;
        let (state, observation) =
            if done { (Vec::new(), Vec::new()) } else { (self.seal(at), self.seen(at).collect()) };
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

impl Game for FrozenLake {
    const REFLEXES: [&'static str; 2] = [
        "the goal if it is beside, else the first side in a fixed order that is ice; the best order of 24",
        "the goal if it is beside, else the ice beside that it was on least often, in a fixed order; the best order of 24",
    ];

    fn reflex(&self, state: &[u8], order: [u32; 4], visits: Option<&mut Visits>) -> Result<u32, EnvError> {
        let FrozenLakeState { holes, player, .. } = self.open(state)?;
        let mut none = Visits::new();
        let visits = visits.unwrap_or(&mut none);
        *visits.entry(u64::from(player)).or_default() += 1;
        Ok(least(order, |action| {
            let cell = beside(self.0.size, u32::from(player), movement(&[action])?)?;
            let times = visits.get(&u64::from(cell)).copied().unwrap_or(0);
            (holes >> cell & 1 == 0).then_some((cell != self.cells() - 1, times))
        }))
    }

    fn shortest_path(&self, state: &[u8]) -> Result<u32, EnvError> {
        let FrozenLakeState { holes, player, .. } = self.open(state)?;
        Ok(least([0, 1, 2, 3], |action| {
            let cell = beside(self.0.size, u32::from(player), movement(&[action])?)?;
            shortest(self.0.size, holes, cell).filter(|_| holes >> cell & 1 == 0)
        }))
    }

    fn best_action(&self, state: &[u8]) -> Result<Option<u32>, EnvError> {
        let FrozenLakeState { holes, player, turn, .. } = self.open(state)?;
        let left = self.0.max_turns - u32::from(turn);
        let best = || best_policy::best_action(self.0.size, holes, u32::from(player), left).0;
        Ok(self.0.slippery.then(best))
    }
}

#[cfg(test)]
mod tests;
