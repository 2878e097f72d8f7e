//! The environments, each a pure function: the task carries the state, so any worker can do any step.

use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Split};

mod counter;
mod frozen_lake;
mod sokoban;
mod level;
mod state;
mod tokens;

pub use counter::Counter;
pub use frozen_lake::FrozenLake;
pub use sokoban::Sokoban;

/// Names of all environments, which are their pools' too.
pub const NAMES: [&str; 3] = ["frozen_lake", "sokoban", "counter"];

/// A game. Both calls follow from their arguments alone.
pub trait Environment {
    /// The start state that `seed` draws from `split`, and the first observation.
    ///
    /// # Errors
    /// The settings allow no start state in this split.
    fn reset(&self, split: Split, seed: u64) -> Result<EnvStepDone, EnvError>;

    /// Takes the action that `tokens` say in `state`. The action is the last token; if that is none, nothing
    /// moves, a turn has passed and `valid` is false.
    ///
    /// # Errors
    /// `state` is none that this environment gave under these settings.
    fn step(&self, state: &[u8], tokens: &[u32]) -> Result<EnvStepDone, EnvError>;
}

/// Why an environment cannot answer. No other worker could.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The bytes are no state of this environment.
    #[error("failed to read the state of {environment}: {reason}")]
    State {
        /// Which environment.
        environment: &'static str,
        /// What is wrong with them.
        reason: String,
    },
    /// No start state was found.
    #[error(
        "failed to draw a start state of {environment}: none of {tries} levels is solvable in time and in \
         the split {split:?}; choose easier settings or more turns"
    )]
    NoLevel {
        /// Which environment.
        environment: &'static str,
        /// Which split.
        split: Split,
        /// Levels drawn.
        tries: u32,
    },
}

/// Does a task.
///
/// # Errors
/// As [`Environment`] says.
pub fn answer(task: &EnvStepTask) -> Result<EnvStepDone, EnvError> {
    match task.environment {
        EnvironmentSpec::FrozenLake { size, frozen, max_turns } => {
            act(&FrozenLake { size, frozen, max_turns }, task)
        }
        EnvironmentSpec::Sokoban { size, scramble, max_turns } => {
            act(&Sokoban { size, scramble, max_turns }, task)
        }
        EnvironmentSpec::Counter { turns } => act(&Counter { turns }, task),
    }
}

fn act(environment: &impl Environment, task: &EnvStepTask) -> Result<EnvStepDone, EnvError> {
    match &task.action {
        EnvAction::Reset => environment.reset(task.split, task.seed),
        EnvAction::Step { state, tokens } => environment.step(state, tokens),
    }
}

#[cfg(test)]
mod tests;
