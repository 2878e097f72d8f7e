//! `env_step`: an environment resets or takes one action. The task carries the state, so any worker
//! can do it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trajectory::EntryRef;

mod environment;
mod games;
mod agent;

pub use agent::{AgentAnswer, AgentMessage, AgentSpec, AgentState, AgentStep, Forks, TurnLimits};
pub use environment::{AGENT, BUILT_IN, DATASET_TOOLS_POOL, EnvironmentSpec, Latency, Operation, Settings};
pub use games::{FrozenLakeSpec, LakeView, SokobanSpec};

/// Reset, or take one action.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnvStepTask {
    /// The environment with its settings.
    pub environment: EnvironmentSpec,
    /// The set of start states that `seed` draws from.
    pub split: Split,
    /// Draws the start state. All rollouts of a group share it.
    pub seed: u64,
    /// With `dataset`: the row of the split, from 0 in the file's order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// Log entries of the environment's step before the turn, and of the turn. Empty if `action` is
    /// complete; else its state is fetched, and its tokens if it has none. `[2]`, or `[1]` for a step without a turn
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<EntryRef>,
    /// Where calls are answered side by side: the number of the call that the turn answers, which is that of the step that led
    /// to it and 1; 0 for a step without a turn, which waits for the next call. `None` elsewhere: the step's own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<u32>,
    /// What to do.
    pub action: EnvAction,
}

/// The action of an `env_step`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvAction {
    /// Create the start state of the seed.
    Reset,
    /// Take the action that `tokens` encode in the state `state`.
    Step {
        /// The `state` that the step before returned.
        #[serde(with = "serde_bytes")]
        #[schemars(with = "Vec<u8>")]
        state: Vec<u8>,
        /// The turn as sampled. `[N]`, 1 or more; 0 for a step without a turn.
        tokens: Vec<u32>,
    },
}

/// Training and held-out start states never overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Split {
    /// May be trained on.
    Train,
    /// For evaluation only.
    HeldOut,
}

/// The result of a step.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct EnvStepDone {
    /// The state after the step, for the next; empty once `done`.
    #[serde(with = "serde_bytes")]
    #[schemars(with = "Vec<u8>")]
    pub state: Vec<u8>,
    /// The next observation. `[N]`; empty only if `done`, or if calls are answered side by side and a later step has the
    /// next call.
    pub observation: Vec<u32>,
    /// The environment's own reward for the step, finite.
    pub reward: f64,
    /// The episode is over.
    pub done: bool,
    /// The goal was reached.
    pub success: bool,
    /// The tokens were an action of this environment.
    pub valid: bool,
    /// The text of this step, if the environment uses text: the policy's, then the environment's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub said: Vec<Utterance>,
    /// At a reset: fields of the prompt for rewards, by name; the answer as `answer`.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub row: Settings,
    /// Limits of the next turn, below those of the run.
    #[serde(default, skip_serializing_if = "TurnLimits::is_none")]
    pub limits: TurnLimits,
    /// The number of the turn that the observation follows, from 1, with all that this one followed;
    /// 0 for none. `None` for the last turn. An earlier one makes the next turn a fork. Where calls are answered side by
    /// side, it is the number of the call that this turn answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub follows: Option<u32>,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Utterance {
    /// The speaker.
    pub speaker: Speaker,
    /// The text.
    pub text: String,
}

/// A side of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The environment.
    Environment,
    /// The policy.
    Policy,
}
