//! The environments. Each is a pure function: the task carries the state, so any worker can make
//! any step.

use millrace_policy::text_codec::{Codec, TextError};
use millrace_schemas::dataset::DatasetError;
use millrace_schemas::env_step::{EnvAction, EnvStepDone, EnvStepTask, EnvironmentSpec, Split};

use crate::runtime::Failure;

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
#[cfg(test)]
pub(crate) mod testing;

pub use arithmetic::Arithmetic;
pub use counter::Counter;
pub use dataset::longest_prompt;
pub use frozen_lake::FrozenLake;
pub use sokoban::Sokoban;

pub use millrace_schemas::env_step::BUILT_IN as NAMES;

/// An environment. Both calls are functions of their arguments alone.
pub trait Environment {
    /// The start state that `seed` draws from `split`, and the first observation.
    ///
    /// # Errors
    /// The settings allow no start state in this split.
    fn reset(&self, split: Split, seed: u64) -> Result<EnvStepDone, EnvError>;

    /// Takes the action in `tokens`, which is the last token. If that is no action, the state
    /// stays, a turn has passed and `valid` is false.
    ///
    /// # Errors
    /// `state` is not from this environment under these settings.
    fn step(&self, state: &[u8], tokens: &[u32]) -> Result<EnvStepDone, EnvError>;
}

/// Why an environment cannot answer. No other worker could, either.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The bytes are no state of this environment.
    #[error("failed to read the state of {environment}: {reason}")]
    State {
        /// The environment.
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
        /// The environment.
        environment: &'static str,
        /// The split.
        split: Split,
        /// Levels drawn.
        tries: u32,
    },
    /// The text codec failed, on the environment's text or on the policy's tokens.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The observation is longer than the run file allows.
    #[error(
        "{environment} has to say tokens={tokens}, more than environment.prompt_tokens={most}; allow more, or choose \
         a shorter environment.system"
    )]
    TooLong {
        /// The environment.
        environment: String,
        /// Its tokens.
        tokens: usize,
        /// The bound.
        most: u32,
    },
    /// The environment speaks text, and there is no tokenizer.
    #[error("{environment} speaks text and the model does not; choose a model of kind=hugging_face")]
    NoText {
        /// The environment.
        environment: String,
    },
    /// The environment needs rows, and the run has none.
    #[error("the rows of {0} are not at hand; hand the run in by `millrace submit`, which brings them")]
    NoRows(String),
    /// The rows differ from those that the run was submitted with.
    #[error(
        "the rows of {path} are not those of the run file: {reason}; are this worker and `millrace` of the same version?"
    )]
    OtherRows {
        /// The file.
        path: String,
        /// How they differ.
        reason: String,
    },
    /// A row is malformed.
    #[error(transparent)]
    Row(#[from] DatasetError),
    /// The worker hosts no agents.
    #[error("environment.name=agent runs programs of the run file; start workers with --agents")]
    NoAgents,
    /// It is none of Millrace's own.
    #[error("environment.pool={0} is answered by a program of its own; start workers with --exec")]
    Foreign(String),
}

impl From<EnvError> for Failure {
    /// Another worker would find the same.
    fn from(error: EnvError) -> Self {
        Self::impossible(error)
    }
}

/// Executes a task of a built-in environment. `codec` is the model's, for an environment that
/// speaks text.
///
/// # Errors
/// As for [`Environment`]; or the text codec failed, or the environment needs rows or a program.
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
        EnvironmentSpec::Agent(_) => Err(EnvError::NoAgents),
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
