//! The protocol between worker and program: one line of JSON per message. First the program sends
//! its offer: `{"millrace": 1, "environments": ["riddles"], "rewards": ["brevity"], "batch": 64}`.
//! Then the worker sends requests, up to `batch` lines before it waits for their answers, and the
//! program answers each with one line, in their order. Without `batch` it sends one at a time. A request
//! has its number as `request`; an answer that repeats it is never taken for another's. The service of
//! sandboxes asks besides for `live_make`, `live_reset` and `live_step`, which no worker does.

use std::time::Duration;

use millrace_schemas::PoolName;
use millrace_schemas::env_step::{Settings, Split, Utterance};
use millrace_schemas::reward::TurnResult;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::runtime::{Failure, Retry};

/// The environments and rewards of a program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The version of the protocol; 1.
    #[serde(rename = "millrace")]
    pub protocol: u32,
    /// Its environments.
    #[serde(default)]
    pub environments: Vec<PoolName>,
    /// Its rewards.
    #[serde(default)]
    pub rewards: Vec<PoolName>,
    /// Requests that it may be sent before it answers the first of them.
    #[serde(default = "one")]
    pub batch: usize,
}

/// A request as it is sent.
#[derive(Debug, Serialize)]
pub(super) struct RequestLine<'a> {
    /// Its number in this worker.
    pub(super) request: u64,
    #[serde(flatten)]
    pub(super) body: &'a ProgramRequest<'a>,
}

/// A request to the program.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum ProgramRequest<'a> {
    /// The start state that the seed draws.
    Reset {
        /// Its name.
        environment: &'a PoolName,
        /// From the run file.
        settings: &'a Settings,
        /// Which start states the seed draws from.
        split: Split,
        /// Draws the start state.
        seed: u64,
    },
    /// A step in `state`, after the policy's turn `said`.
    Step {
        /// Its name.
        environment: &'a PoolName,
        /// From the run file.
        settings: &'a Settings,
        /// From the answer before.
        state: Value,
        /// The policy's words.
        said: &'a str,
    },
    /// The score of a finished rollout.
    Score {
        /// Its name.
        reward: &'a PoolName,
        /// From the run file.
        settings: &'a Settings,
        /// Turn by turn.
        turns: &'a [TurnResult],
        /// The environment's goal was reached.
        success: bool,
        /// All turns of both sides, where the environment speaks text.
        conversation: &'a [Utterance],
        /// The fields of the dataset's row, without the prompt, and with the answer as `answer`.
        /// Left out without rows.
        #[serde(skip_serializing_if = "Settings::is_empty")]
        row: &'a Settings,
    },
}

/// An answer as it is read.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AnswerLine {
    /// The number of the request that it answers, where the program says it.
    request: Option<u64>,
    step: Option<EnvAnswer>,
    score: Option<f64>,
    refused: Option<Refusal>,
}

impl AnswerLine {
    /// The answer to the request of this number.
    pub(super) fn to(self, number: u64) -> Result<Answer, String> {
        if let Some(other) = self.request.filter(|request| *request != number) {
            return Err(format!("request={other}, and the next to be answered is request={number}"));
        }
        match (self.step, self.score, self.refused) {
            (Some(step), None, None) => Ok(Answer::Step(step)),
            (None, Some(score), None) => Ok(Answer::Score(score)),
            (None, None, Some(refusal)) => Ok(Answer::Refused(refusal)),
            _ => Err("it has to be one of step, score and refused".to_owned()),
        }
    }
}

/// An answer of the program.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// To a reset or a step.
    Step(EnvAnswer),
    /// To a score.
    Score(f64),
    /// The program cannot answer.
    Refused(Refusal),
}

/// The answer of an environment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnvAnswer {
    /// Returned with the next step; any JSON.
    #[serde(default)]
    pub state: Value,
    /// The environment's turn; empty only when `done`.
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

/// Why the program cannot answer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// For people.
    pub reason: String,
    /// Seconds until a retry; without it the task becomes a dead letter.
    #[serde(default)]
    pub retry_after_s: Option<f64>,
}

const fn yes() -> bool {
    true
}

const fn one() -> usize {
    1
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Refusal { reason, retry_after_s } = refusal;
        match retry_after_s.map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default()) {
            Some(delay) => Self::Retry(Retry::After(delay), reason),
            None => Self::Impossible(reason),
        }
    }
}
