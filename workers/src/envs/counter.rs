//! Answer each number with its successor. Needs no model: for checks of queue and coordinator.

use std::time::Duration;

use millrace_policy::random::{Stream, fnv1a};
use millrace_schemas::TaskKey;
use millrace_schemas::env_step::{EnvStepDone, Latency, Split};

use super::{EnvError, Environment, level, state};

/// Numbers are below this, and so are tokens.
const NUMBERS: u32 = 128;
const NAME: &str = "counter";
const KIND: u8 = 3;

/// The environment.
#[derive(Debug, Clone, Copy)]
pub struct Counter {
    /// Turns of an episode.
    pub turns: u32,
}

/// How long the task of this name takes: the same at each attempt at it.
#[must_use]
pub(crate) fn drawn(latency: Latency, task: &TaskKey) -> Duration {
    let mut stream = Stream::new(fnv1a(&task.to_string()));
    // Box and Muller 1958, "A Note on the Generation of Random Normal Deviates".
    let (length, angle) = (1.0 - stream.unit(), std::f64::consts::TAU * stream.unit());
    let normal = (-2.0 * length.ln()).sqrt() * angle.cos();
    Duration::from_secs_f64((latency.mean_ms + latency.deviation_ms * normal).max(0.0) / 1e3)
}

/// The state of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CounterState {
    number: u8,
    turn: u16,
    all_right: bool,
}

impl CounterState {
    fn seal(self) -> Vec<u8> {
        let [low, high] = self.turn.to_le_bytes();
        state::seal(KIND, &[self.number, low, high, u8::from(self.all_right)])
    }

    fn open(bytes: &[u8], turns: u32) -> Result<Self, EnvError> {
        let [number, low, high, all_right] = state::open(NAME, KIND, bytes)?;
        let turn = u16::from_le_bytes([low, high]);
        if u32::from(number) >= NUMBERS || u32::from(turn) >= turns || all_right > 1 {
            let reason = format!("number={number} turn={turn} of {turns} all_right={all_right}");
            return Err(EnvError::State { environment: NAME, reason });
        }
        Ok(Self { number, turn, all_right: all_right == 1 })
    }
}

impl Environment for Counter {
    fn reset(&self, split: Split, seed: u64) -> Result<EnvStepDone, EnvError> {
        let candidate =
            |stream: &mut millrace_policy::random::Stream| Some(stream.below(u64::from(NUMBERS)) as u8);
        let number = level::draw(NAME, split, seed, candidate, |number| vec![*number])?;
        Ok(EnvStepDone {
            state: CounterState { number, turn: 0, all_right: true }.seal(),
            observation: vec![u32::from(number)],
            reward: 0.0,
            done: false,
            success: false,
            valid: true,
            ..EnvStepDone::default()
        })
    }

    fn step(&self, state: &[u8], tokens: &[u32]) -> Result<EnvStepDone, EnvError> {
        let CounterState { number, turn, all_right } = CounterState::open(state, self.turns)?;
        let answer = tokens.last().copied().unwrap_or(NUMBERS);
        let right = answer == (u32::from(number) + 1) % NUMBERS;
        let all_right = all_right && right;
        let turn = turn + 1;
        // Multiplier and increment visit all 128 numbers in turn.
        let next = ((u32::from(number) * 5 + 17) % NUMBERS) as u8;
        let done = u32::from(turn) >= self.turns;
        let (state, observation) = if done {
            (Vec::new(), Vec::new())
        } else {
            (CounterState { number: next, turn, all_right }.seal(), vec![u32::from(next)])
        };
        let reward = if right { 1.0 / f64::from(self.turns) } else { 0.0 };
        Ok(EnvStepDone {
            state,
            observation,
            reward,
            done,
            success: done && all_right,
            valid: answer < NUMBERS,
            ..EnvStepDone::default()
        })
    }
}

#[cfg(test)]
mod tests;
