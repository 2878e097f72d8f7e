//! `reward`: a finished rollout gets one score from one rule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::env_step::{Settings, Utterance};
use crate::trajectory::EntryRef;

pub mod settings;
pub mod code;
pub mod math;
pub mod format;
pub mod instructions;
pub mod judge;

/// Score one finished rollout.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewardTask {
    /// The rule.
    pub rule: RewardRule,
    /// What happened, turn by turn. `[turns]`, 1 or more.
    pub turns: Vec<TurnResult>,
    /// The environment's goal was reached.
    pub success: bool,
    /// What the run file tells the rule.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub settings: Settings,
    /// Where `conversation` and `row` are stored: all that the environment answered, its reset first. Empty where they are
    /// here or the rule reads neither. `[1 + turns]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<EntryRef>,
    /// Everything that was said, for a rule that reads it in an environment that speaks text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversation: Vec<Utterance>,
    /// What the environment tells rewards of the prompt: the fields of a dataset's row but its prompt, the answer as text
    /// under `answer`.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub row: Settings,
}

/// What one turn brought.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnResult {
    /// The environment's reward for it.
    pub reward: f64,
    /// The tokens were an action.
    pub valid: bool,
    /// Tokens sampled.
    pub tokens: u32,
}

/// How a rollout is scored. The pool that serves it has the same name, but for rules of your own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardRule {
    /// The sum of the environment's own rewards.
    EnvReturn,
    /// 1 when the goal was reached, else 0.
    Success,
    /// The share of turns that were valid actions, or had the form that is asked for, minus 1: 0 at best, −1 at worst.
    Format,
    /// Whether the last answer says what the right one does, as mathematics: 1 when it does, else 0.
    Math,
    /// Whether the last answer looks as it was asked to, its length and its words for example: 1 when it does, else 0.
    Instructions,
    /// Whether the program in the last answer passes its tests, run in a sandbox: 1 when it does, else 0.
    Code,
    /// What another model says of the last answer, from 0 to 1.
    Judge,
    /// One of your own, which a program beside the worker answers for: `millrace-worker --exec`.
    Custom,
}

impl RewardRule {
    /// Rules that come with Millrace; their names are their pools' too.
    pub const BUILT_IN: [Self; 7] = [
        Self::EnvReturn,
        Self::Success,
        Self::Format,
        Self::Math,
        Self::Instructions,
        Self::Code,
        Self::Judge,
    ];

    /// Whether it reads what was said, whatever it is told.
    #[must_use]
    pub const fn reads_words(self) -> bool {
        match self {
            Self::Math | Self::Instructions | Self::Code | Self::Judge | Self::Custom => true,
            Self::EnvReturn | Self::Success | Self::Format => false,
        }
    }

    /// The rule's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::EnvReturn => "env_return",
            Self::Success => "success",
            Self::Format => "format",
            Self::Math => "math",
            Self::Instructions => "instructions",
            Self::Code => "code",
            Self::Judge => "judge",
            Self::Custom => "custom",
        }
    }
}

/// The score.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RewardDone {
    /// Finite. A rule that cannot tell fails; it never says 0.
    pub score: f64,
    /// For people: what the answer lacks, or what the machine does that scored it. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
