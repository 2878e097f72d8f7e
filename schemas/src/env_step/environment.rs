//! An environment as a run file names it: its settings, its pool, and the bounds of what it says.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{AgentSpec, FrozenLakeSpec, SokobanSpec};
use crate::dataset::{AnswerCheck, DatasetSpec};
use crate::ids::PoolName;
use crate::omit;
use crate::submit::Checks;

/// An environment and its settings. The pool that serves it has the same name, unless documented
/// otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "name", rename_all = "snake_case", deny_unknown_fields)]
pub enum EnvironmentSpec {
    /// Cross a frozen lake from corner to corner without falling into a hole; random solvable maps.
    FrozenLake(FrozenLakeSpec),
    /// Push one box onto its target; levels are made solvable by playing backwards from the end.
    Sokoban(SokobanSpec),
    /// Answer each number with its successor. It needs no learning; for checks of the queue.
    Counter {
        /// Turns of an episode.
        turns: u32,
        /// Duration of a turn, for experiments with slow environments. Default: no time.
        #[serde(default, skip_serializing_if = "omit::is_default")]
        #[schemars(extend("default" = { "mean_ms": 0.0, "deviation_ms": 0.0 }))]
        latency: Latency,
    },
    /// Arithmetic with two whole numbers, in text. Needs a model with a tokenizer.
    Arithmetic {
        /// Operations, drawn uniformly. Default `["add"]`.
        #[serde(default = "addition")]
        operations: Vec<Operation>,
        /// Numbers are 0 to this. Default 99.
        #[serde(default = "ninety_nine")]
        largest: u32,
        /// Tries at one question. Default 1.
        #[serde(default = "one")]
        max_turns: u32,
        /// System message. Default empty: that of the chat template, if any.
        #[serde(default)]
        system: String,
        /// Tokens of one turn of the environment at most, including those of the chat template; a
        /// longer question is refused. Default 128.
        #[serde(default = "one_hundred_twenty_eight")]
        prompt_tokens: u32,
    },
    /// Prompts from the rows of a file, in text. Needs a model with a tokenizer.
    Dataset(DatasetSpec),
    /// A program of its own that asks a model over HTTP, for each row of a file of tasks. Needs workers
    /// with `--agents`.
    Agent(Box<AgentSpec>),
    /// Your own environment, in text, served by a program beside the worker: `millrace-worker
    /// --exec`.
    Custom {
        /// Its name in that program, and the name of its pool.
        pool: PoolName,
        /// Turns after which the episode is truncated. Default 1.
        #[serde(default = "one")]
        max_turns: u32,
        /// System message. Default empty: that of the chat template, if any.
        #[serde(default)]
        system: String,
        /// Tokens of one turn of the environment at most, including those of the chat template; a
        /// longer question is refused. Default 128.
        #[serde(default = "one_hundred_twenty_eight")]
        prompt_tokens: u32,
        /// Passed to the program. Default {}.
        #[serde(default)]
        settings: Settings,
    },
}

/// Milliseconds, drawn for each turn from a normal distribution; negative draws count as 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Latency {
    /// The mean. Default 0.
    pub mean_ms: f64,
    /// The standard deviation. Default 0.
    pub deviation_ms: f64,
}

/// Names of the environments that come with Millrace, and of their pools.
pub const BUILT_IN: [&str; 5] = ["frozen_lake", "sokoban", "counter", "arithmetic", "dataset"];

/// The environment whose programs of others run on the worker, and its pool. A worker serves it only
/// if it is told to.
pub const AGENT: &str = "agent";

/// The pool of the environment `dataset` with tools. A worker serves it only if it has servers of
/// tools.
pub const DATASET_TOOLS_POOL: &str = "dataset_tools";

/// Settings that are passed to your own program with each request.
pub type Settings = BTreeMap<String, serde_json::Value>;

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// a + b.
    Add,
    /// a − b, which may be negative.
    Subtract,
    /// a × b.
    Multiply,
}

fn addition() -> Vec<Operation> {
    vec![Operation::Add]
}
const fn one() -> u32 {
    1
}
const fn ninety_nine() -> u32 {
    99
}
const fn one_hundred_twenty_eight() -> u32 {
    128
}

impl EnvironmentSpec {
    /// Checks the bounds of its own settings; `field` is the path of one in the run file. A dataset
    /// is checked with the run's rewards.
    pub(crate) fn check_settings(&self, field: &dyn Fn(&str) -> String, checks: &mut Checks) {
        match self {
            Self::FrozenLake(lake) => lake.check(field, checks),
            Self::Sokoban(sokoban) => sokoban.check(field, checks),
            Self::Counter { latency, .. } => {
                // Far below the time limit of a task.
                checks.number(&field("latency.mean_ms"), latency.mean_ms, 0.0, 60_000.0);
                checks.number(&field("latency.deviation_ms"), latency.deviation_ms, 0.0, 10_000.0);
            }
            Self::Arithmetic { operations, largest, .. } => {
                let count = operations.len();
                checks.require(count > 0, &field("operations"), count, "name one or more, [\"add\"]");
                checks.count(&field("largest"), u64::from(*largest), 9, 1_000_000_000);
            }
            // Their rows are checked with the prompts that are evaluated.
            Self::Dataset(_) | Self::Agent(_) => {}
            Self::Custom { pool, .. } => {
                checks.require(
                    !BUILT_IN.contains(&pool.as_str())
                        && ![AGENT, DATASET_TOOLS_POOL].contains(&pool.as_str()),
                    &field("pool"),
                    pool,
                    "an environment that comes with Millrace has this name; give yours another",
                );
            }
        }
    }

    /// The pool of its tasks.
    #[must_use]
    pub fn pool(&self) -> &str {
        match self {
            Self::Custom { pool, .. } => pool.as_str(),
            Self::Dataset(dataset) if !dataset.tools.is_empty() => DATASET_TOOLS_POOL,
            Self::FrozenLake(_)
            | Self::Sokoban(_)
            | Self::Counter { .. }
            | Self::Arithmetic { .. }
            | Self::Agent(_)
            | Self::Dataset(_) => self.name(),
        }
    }

    /// The environment's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::FrozenLake(_) => "frozen_lake",
            Self::Sokoban(_) => "sokoban",
            Self::Counter { .. } => "counter",
            Self::Arithmetic { .. } => "arithmetic",
            Self::Dataset(_) => "dataset",
            Self::Agent(_) => AGENT,
            Self::Custom { .. } => "custom",
        }
    }

    /// Whether observations and actions are text, in tokens of the model's tokenizer.
    #[must_use]
    pub const fn speaks_text(&self) -> bool {
        matches!(self, Self::Arithmetic { .. } | Self::Dataset(_) | Self::Agent(_) | Self::Custom { .. })
    }

    /// Vocabulary of observations and actions: token ids are below this. `None` if it is the
    /// model's.
    #[must_use]
    pub const fn vocabulary(&self) -> Option<u32> {
        Some(match self {
            Self::Arithmetic { .. } | Self::Dataset(_) | Self::Agent(_) | Self::Custom { .. } => return None,
            Self::FrozenLake(lake) => lake.vocabulary(),
            Self::Sokoban(sokoban) => sokoban.vocabulary(),
            Self::Counter { .. } => 128,
        })
    }

    /// Tokens below this are actions. `None` if any token of the model is.
    #[must_use]
    pub const fn actions(&self) -> Option<u32> {
        match self {
            Self::FrozenLake(_) | Self::Sokoban(_) => Some(4),
            Self::Counter { .. } => Some(128),
            Self::Arithmetic { .. } | Self::Dataset(_) | Self::Agent(_) | Self::Custom { .. } => None,
        }
    }

    /// Maximal tokens of the first observation and of each later one.
    #[must_use]
    pub const fn observation_tokens(&self) -> (u32, u32) {
        match self {
            Self::FrozenLake(lake) => lake.observation_tokens(),
            Self::Sokoban(sokoban) => (sokoban.walls.saturating_add(5), 5),
            Self::Counter { .. } => (1, 1),
            Self::Arithmetic { prompt_tokens, .. }
            | Self::Dataset(DatasetSpec { prompt_tokens, .. })
            | Self::Custom { prompt_tokens, .. } => (*prompt_tokens, *prompt_tokens),
            Self::Agent(agent) => (agent.context_tokens, agent.context_tokens),
        }
    }

    /// Tokens of the longest rollout if a turn has at most `max_new_tokens`.
    #[must_use]
    pub fn longest_rollout(&self, max_new_tokens: u32) -> u64 {
        if let Self::Agent(agent) = self {
            // The bound is on the whole context before a turn.
            return u64::from(agent.context_tokens) + u64::from(max_new_tokens);
        }
        let (first, later) = self.observation_tokens();
        let turns = u64::from(self.max_turns());
        // The observation after the last turn is not kept.
        let sampled = turns.saturating_mul(u64::from(max_new_tokens));
        let observed =
            turns.saturating_sub(1).saturating_mul(u64::from(later)).saturating_add(u64::from(first));
        sampled.saturating_add(observed)
    }

    /// The most tokens of an observation, if the run file has them.
    #[must_use]
    pub const fn prompt_tokens(&self) -> Option<u32> {
        match self {
            Self::Arithmetic { prompt_tokens, .. }
            | Self::Dataset(DatasetSpec { prompt_tokens, .. })
            | Self::Custom { prompt_tokens, .. } => Some(*prompt_tokens),
            Self::Agent(agent) => Some(agent.context_tokens),
            Self::FrozenLake(_) | Self::Sokoban(_) | Self::Counter { .. } => None,
        }
    }

    /// Turns after which the environment ends the episode.
    #[must_use]
    pub const fn max_turns(&self) -> u32 {
        match self {
            Self::FrozenLake(FrozenLakeSpec { max_turns, .. })
            | Self::Sokoban(SokobanSpec { max_turns, .. })
            | Self::Arithmetic { max_turns, .. }
            | Self::Dataset(DatasetSpec { max_turns, .. })
            | Self::Custom { max_turns, .. } => *max_turns,
            Self::Counter { turns, .. } => *turns,
            Self::Agent(agent) => agent.max_turns,
        }
    }

    /// Turns of one rollout that are sampled at once; 1 where each follows the environment's answer to the one before.
    #[must_use]
    pub const fn parallel_calls(&self) -> u32 {
        match self {
            Self::Agent(agent) => agent.parallel_calls,
            Self::FrozenLake(_)
            | Self::Sokoban(_)
            | Self::Counter { .. }
            | Self::Arithmetic { .. }
            | Self::Dataset(_)
            | Self::Custom { .. } => 1,
        }
    }

    /// The dataset, if it has one.
    #[must_use]
    pub const fn dataset(&self) -> Option<&DatasetSpec> {
        match self {
            Self::Dataset(dataset) => Some(dataset),
            Self::Agent(agent) => Some(&agent.rows),
            Self::FrozenLake(_)
            | Self::Sokoban(_)
            | Self::Counter { .. }
            | Self::Arithmetic { .. }
            | Self::Custom { .. } => None,
        }
    }

    /// The dataset, to set its content.
    #[must_use]
    pub const fn dataset_mut(&mut self) -> Option<&mut DatasetSpec> {
        match self {
            Self::Dataset(dataset) => Some(dataset),
            Self::Agent(agent) => Some(&mut agent.rows),
            _ => None,
        }
    }

    /// Whether the run's first reward decides if a rollout succeeded, because the environment
    /// cannot.
    #[must_use]
    pub fn succeeds_by_reward(&self) -> bool {
        matches!(self, Self::Dataset(dataset) if dataset.check == AnswerCheck::ByReward)
    }
}
