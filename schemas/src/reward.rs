//! `reward`: a finished rollout gets one score from one rule.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::env_step::{Settings, Utterance};
use crate::trajectory::EntryRef;
use code::CodeSettings;
use format::FormatSettings;
use instructions::InstructionSettings;
use judge::JudgeSettings;
use math::MathSettings;
use settings::{WrongSetting, wrong};

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
    /// The result of each turn. `[turns]`, 1 or more.
    pub turns: Vec<TurnResult>,
    /// The environment's goal was reached.
    pub success: bool,
    /// The rule's settings in the run file.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub settings: Settings,
    /// Log entries of `conversation` and `row`: all steps of the environment, the reset first.
    /// Empty if they are included or the rule reads neither. `[1 + turns]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<EntryRef>,
    /// The whole conversation, for a rule that reads it in an environment that uses text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversation: Vec<Utterance>,
    /// The environment's fields for rewards: those of a dataset's row except the prompt, the answer
    /// as text under `answer`.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub row: Settings,
}

impl RewardTask {
    /// A rollout to be scored by what its environment gave: without settings and text.
    #[must_use]
    pub fn new(rule: RewardRule, turns: Vec<TurnResult>, success: bool) -> Self {
        let (settings, row) = (Settings::new(), Settings::new());
        Self { rule, turns, success, settings, prefix: Vec::new(), conversation: Vec::new(), row }
    }
}

/// The result of one turn.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnResult {
    /// The environment's reward for it.
    pub reward: f64,
    /// The tokens were an action.
    pub valid: bool,
    /// Tokens sampled.
    pub tokens: u32,
}

/// How a rollout is scored. The pool that serves it has the same name, except for your own rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RewardRule {
    /// The sum of the environment's own rewards.
    EnvReturn,
    /// 1 when the goal was reached, else 0.
    Success,
    /// The share of turns that were valid actions, or had the required form, minus 1: 0 at best, −1
    /// at worst.
    Format,
    /// Whether the last answer is mathematically equal to the right one: 1 if it is, else 0.
    Math,
    /// Whether the last answer follows its instructions, on length or words for example: 1 if it
    /// does, else 0.
    Instructions,
    /// Whether the program in the last answer passes its tests in a sandbox: 1 if it does, else 0.
    Code,
    /// Another model's score of the last answer, from 0 to 1.
    Judge,
    /// Your own rule, served by a program beside the worker: `millrace-worker --exec`.
    Custom,
}

impl RewardRule {
    /// Rules that come with Millrace. Their pools have the same names.
    pub const BUILT_IN: [Self; 7] = [
        Self::EnvReturn,
        Self::Success,
        Self::Format,
        Self::Math,
        Self::Instructions,
        Self::Code,
        Self::Judge,
    ];

    /// Whether it reads the conversation, with any settings.
    #[must_use]
    pub const fn reads_words(self) -> bool {
        match self {
            Self::Math | Self::Instructions | Self::Code | Self::Judge | Self::Custom => true,
            Self::EnvReturn | Self::Success | Self::Format => false,
        }
    }

    /// Mistakes in its settings.
    #[must_use]
    pub fn wrong_settings(self, settings: &Settings) -> Vec<WrongSetting> {
        match self {
            Self::Code => wrong::<CodeSettings>(settings),
            Self::Math => wrong::<MathSettings>(settings),
            Self::Judge => wrong::<JudgeSettings>(settings),
            // A user's own program checks its settings itself.
            Self::Custom => Vec::new(),
            Self::Format => wrong::<FormatSettings>(settings),
            Self::Instructions => wrong::<InstructionSettings>(settings),
            Self::EnvReturn | Self::Success if settings.is_empty() => Vec::new(),
            Self::EnvReturn | Self::Success => {
                let table = serde_json::json!(settings).to_string();
                vec![WrongSetting::new("", table, "this rule takes no settings; leave them out")]
            }
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
    /// Finite. A rule that cannot score fails; it never gives 0 instead.
    pub score: f64,
    /// A remark for people: what the answer lacks, or what the scoring machine lacks. May be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}
