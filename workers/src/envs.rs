//! The environments, each a pure function: the task carries the state, so any worker can do any step.

use millrace_schemas::dataset::DatasetError;
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Split};

use crate::model::text_codec::{Codec, TextError};
use crate::runtime::Verdict;

pub mod datasets;
mod arithmetic;
pub mod baselines;
pub(crate) mod counter;
pub(crate) mod dataset;
mod frozen_lake;
mod sokoban;
mod level;
pub(crate) mod spoken;
mod state;
mod tokens;

pub use arithmetic::Arithmetic;
pub use counter::Counter;
pub use dataset::longest_prompt;
pub use frozen_lake::FrozenLake;
pub use sokoban::Sokoban;

pub use millrace_schemas::env_step::BUILT_IN as NAMES;

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
    /// What it says cannot be put into tokens of the model, or what the model said into text.
    #[error(transparent)]
    Text(#[from] TextError),
    /// What it says is longer than the run file allows.
    #[error(
        "{environment} has to say tokens={tokens}, more than environment.prompt_tokens={most}; allow more, or choose \
         a shorter environment.system"
    )]
    TooLong {
        /// Which environment.
        environment: String,
        /// How many there are.
        tokens: usize,
        /// How many there may be.
        most: u32,
    },
    /// There is no tokenizer to say it with.
    #[error("{environment} speaks text and the model does not; choose a model of kind=hugging_face")]
    NoText {
        /// Which environment.
        environment: String,
    },
    /// Nobody has brought the rows that it asks.
    #[error("the rows of {0} are not at hand; hand the run in by `millrace submit`, which brings them")]
    NoRows(String),
    /// The rows are not what the run file says of them.
    #[error(
        "the rows of {path} are not those of the run file: {reason}; are this worker and `millrace` of the same version?"
    )]
    OtherRows {
        /// The file.
        path: String,
        /// How they differ.
        reason: String,
    },
    /// A row cannot be asked.
    #[error(transparent)]
    Row(#[from] DatasetError),
    /// It is none of Millrace's own.
    #[error("environment.pool={0} is answered by a program of its own; start workers with --exec")]
    Foreign(String),
}

impl EnvError {
    /// What becomes of the task: another worker would come to the same.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::Poison(self.to_string())
    }
}

/// Does a task that needs nothing but itself. `codec` is the model's, for an environment that speaks text.
///
/// # Errors
/// As [`Environment`] says, what is said cannot be put into tokens, or the environment needs rows or a program.
pub fn answer(task: &EnvStepTask, codec: Option<&Codec>) -> Result<EnvStepDone, EnvError> {
    match task.environment {
        EnvironmentSpec::FrozenLake(spec) => act(&FrozenLake(spec), task),
        EnvironmentSpec::Sokoban(spec) => act(&Sokoban(spec), task),
        EnvironmentSpec::Counter { turns, .. } => act(&Counter { turns }, task),
        EnvironmentSpec::Arithmetic { ref operations, largest, max_turns, ref system, prompt_tokens } => {
            let game = Arithmetic { operations, largest, max_turns };
            let environment = task.environment.name();
            spoken::act(&game, &spoken::TextTurns { environment, codec, system, prompt_tokens }, task)
        }
        EnvironmentSpec::Dataset(ref rows) => Err(EnvError::NoRows(rows.path.clone())),
        EnvironmentSpec::Custom { ref pool, .. } => Err(EnvError::Foreign(pool.to_string())),
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
