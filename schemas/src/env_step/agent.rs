//! The environment `agent`: any program that asks a model over HTTP plays the episode. Each of its
//! calls is one turn.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EnvStepDone;
use crate::dataset::DatasetSpec;
use crate::ids::{RolloutId, RunId, WorkerId};
use crate::omit;
use crate::version::PolicyVersion;

/// An agent's program, its tasks, its limits and the program that scores it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// The agent's program and its arguments, each as it is: no shell. `{prompt}` in an argument
    /// becomes the row's prompt. It starts in a folder of its own that holds the task's files.
    /// `[A]`, 1 or more.
    pub command: Vec<String>,
    /// The program that scores the folder once the agent has ended, and its arguments. With any exit
    /// code but 0 the score is 0. With 0 the last line of its output is the score if it is a number
    /// from 0 to 1, else 1. `[A]`, 1 or more.
    pub reward: Vec<String>,
    /// The tasks, one on each row: the prompt, and `files` and `reward_files`, both from relative path
    /// to text.
    pub rows: DatasetSpec,
    /// Text files that each task has, by relative path, beside those of its row; at most 32 KiB. Default
    /// none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub files: BTreeMap<String, String>,
    /// Text files that are put in place when the agent has ended, never before; at most 32 KiB. Default
    /// none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub reward_files: BTreeMap<String, String>,
    /// Further variables of the agent's environment. `{gateway}` in a value becomes the gateway's URL,
    /// `{key}` the rollout's key. Default none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("default" = {}))]
    pub env: BTreeMap<String, String>,
    /// Hosts that the agent and the reward's program may reach from their sandbox, each with its port:
    /// `pypi.org:443`, or `*.pythonhosted.org:443` for all names below one. Private addresses never are.
    /// A worker refuses what its `--agents-network` does not have. `[H]`, at most 64. Default none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("default" = []))]
    pub network: Vec<String>,
    /// Calls that are answered; a later one gets 410. Default 16.
    #[serde(default = "sixteen")]
    pub max_turns: u32,
    /// Tokens of a call's whole context at most, the turns before it in the conversation included; a longer one gets 400.
    /// The model's context must have room for these and one turn more. Default 2048.
    #[serde(default = "two_thousand_forty_eight")]
    pub context_tokens: u32,
    /// What happens to a call that does not continue the conversation. Default `refuse`.
    #[serde(default)]
    pub forks: Forks,
    /// Calls whose turns are sampled at once: those of sub-agents that work side by side. More than 1 needs
    /// `forks = "separate"`; with 1, calls side by side are answered one after another. Default 1.
    #[serde(default = "one", skip_serializing_if = "omit::is_single")]
    #[schemars(extend("default" = 1))]
    pub parallel_calls: u32,
    /// Milliseconds of the agent's own time from one answer to its next call; then it is ended and
    /// scored. Time in which it waits for the model does not count. Default 60000.
    #[serde(default = "a_minute")]
    pub call_ms: u64,
    /// Milliseconds of the agent's own time in all; then it is ended and scored. Default 600000.
    #[serde(default = "ten_minutes")]
    pub time_ms: u64,
    /// Milliseconds of the reward's program; one that takes longer is ended, and the score is 0.
    /// Default 60000.
    #[serde(default = "a_minute")]
    pub reward_ms: u64,
    /// Milliseconds that an agent's call may wait for its turn to be sampled; then the rollout counts
    /// as lost and restarts. Default 1800000.
    #[serde(default = "half_an_hour")]
    pub idle_ms: u64,
}

/// What happens to a call that does not continue the rollout's conversation: compressed context, a
/// sub-agent, an edited history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Forks {
    /// It gets 409, with the first message that differs. The agent goes on as it likes.
    #[default]
    Refuse,
    /// Its whole conversation is appended to the rollout's context as one observation. The model sees what was before it, too.
    Append,
    /// It becomes a sample of its own, which shares with the others what they have in common.
    Separate,
}

/// The state of an episode between two steps: where its agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentState {
    /// The worker that hosts it.
    pub worker: WorkerId,
    /// Tells this process of the worker from another one of the same name.
    pub instance: String,
    /// Answered calls.
    pub turn: u32,
}

/// A message from one worker to another on `mr.ctl.agent.<worker>`, or to all on `mr.ctl.agent.ALL`. It may
/// be lost: questions are repeated, and asking twice is harmless.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentMessage {
    /// To the worker that hosts the session: take this turn, and tell what followed.
    Step(AgentStep),
    /// To the worker that asked.
    Answer {
        /// The number of the question.
        question: u64,
        /// What followed.
        answer: AgentAnswer,
    },
    /// To all workers: this attempt at a rollout has begun, so the agents of earlier ones are not needed.
    Begun {
        /// The session's run.
        run: RunId,
        /// The session's rollout.
        rollout: RolloutId,
    },
}

/// A step for a session on another worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStep {
    /// Who asks.
    pub from: WorkerId,
    /// The number of the question, unique for the asker's process.
    pub question: u64,
    /// The host's process, see [`AgentState::instance`].
    pub instance: String,
    /// The session's run.
    pub run: RunId,
    /// The session's rollout.
    pub rollout: RolloutId,
    /// The step's number, from 0.
    #[serde(rename = "turn")]
    pub step: u32,
    /// The number of the call that the turn answers, from 1; 0 for a step without a turn. `None` from a worker that does not
    /// know of parallel calls: the step's number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<u32>,
    /// The version that the rollout's staleness counts from, as its task has it. `None` from a worker that does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<PolicyVersion>,
    /// The turn's tokens. `[N]`
    pub tokens: Vec<u32>,
}

/// What followed a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentAnswer {
    /// The agent works; the asker waits.
    Working,
    /// Its next call, or its end.
    Done(Box<EnvStepDone>),
    /// There is no such session, for this reason.
    Lost(String),
    /// The agent cannot be run, for this reason.
    Impossible(String),
}

const fn one() -> u32 {
    1
}
const fn sixteen() -> u32 {
    16
}
const fn two_thousand_forty_eight() -> u32 {
    2048
}
const fn a_minute() -> u64 {
    60_000
}
const fn ten_minutes() -> u64 {
    600_000
}
const fn half_an_hour() -> u64 {
    1_800_000
}

/// Limits that a call sets for its turn, below those of the run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TurnLimits {
    /// Tokens of the turn at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_new_tokens: Option<u32>,
    /// Texts that end the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop: Vec<String>,
}

impl TurnLimits {
    /// Whether it limits nothing.
    #[must_use]
    pub fn is_none(&self) -> bool {
        omit::is_default(self)
    }
}
