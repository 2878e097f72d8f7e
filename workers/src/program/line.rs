//! What worker and program say to each other, each on a line of its own. First the program says what it answers for:
//! `{"millrace": 1, "environments": ["riddles"], "rewards": ["brevity"]}`. Then the worker asks, and the program answers,
//! one question at a time.

use std::time::Duration;

use millrace_schemas::PoolName;
use millrace_schemas::env_step::{Settings, Split, Utterance};
use millrace_schemas::reward::TurnResult;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::runtime::Verdict;

/// What a program answers for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The version of these lines; 1.
    #[serde(rename = "millrace")]
    pub protocol: u32,
    /// Its environments.
    #[serde(default)]
    pub environments: Vec<PoolName>,
    /// Its rewards.
    #[serde(default)]
    pub rewards: Vec<PoolName>,
}

/// What is asked.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum ProgramRequest<'a> {
    /// The start state that the seed draws.
    Reset {
        /// Which environment.
        environment: &'a PoolName,
        /// From the run file.
        settings: &'a Settings,
        /// Which start states the seed draws from.
        split: Split,
        /// Draws the start state.
        seed: u64,
    },
    /// What follows in `state` when the policy says `said`.
    Step {
        /// Which environment.
        environment: &'a PoolName,
        /// From the run file.
        settings: &'a Settings,
        /// What the answer before gave.
        state: Value,
        /// The policy's words.
        said: &'a str,
    },
    /// The score of a finished rollout.
    Score {
        /// Which reward.
        reward: &'a PoolName,
        /// From the run file.
        settings: &'a Settings,
        /// Turn by turn.
        turns: &'a [TurnResult],
        /// The environment's goal was reached.
        success: bool,
        /// Everything that was said, where the environment speaks text.
        conversation: &'a [Utterance],
        /// The fields of the dataset's row, the prompt's apart and the answer as `answer`; not there without rows.
        #[serde(skip_serializing_if = "Settings::is_empty")]
        row: &'a Settings,
    },
}

/// What is answered.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// To a reset or a step.
    Step(EnvAnswer),
    /// To a score.
    Score(f64),
    /// No answer.
    Refused(Refusal),
}

/// What an environment says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvAnswer {
    /// Comes back with the next step; any JSON.
    #[serde(default)]
    pub state: Value,
    /// The environment's words; none only when `done`.
    #[serde(default)]
    pub text: String,
    /// The reward for the step, finite.
    #[serde(default)]
    pub reward: f64,
    /// The episode is over.
    #[serde(default)]
    pub done: bool,
    /// The goal was reached.
    #[serde(default)]
    pub success: bool,
    /// The words were an action.
    #[serde(default = "yes")]
    pub valid: bool,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// For people.
    pub reason: String,
    /// Seconds after which it may be asked again; without it nobody can answer.
    #[serde(default)]
    pub retry_after_s: Option<f64>,
}

const fn yes() -> bool {
    true
}

impl Refusal {
    /// What becomes of the task.
    #[must_use]
    pub fn verdict(self) -> Verdict {
        match self.retry_after_s.map(Duration::try_from_secs_f64) {
            Some(Ok(delay)) => Verdict::RetryAfter(delay, self.reason),
            Some(Err(_)) => Verdict::RetryAfter(Duration::ZERO, self.reason),
            None => Verdict::Poison(self.reason),
        }
    }
}
