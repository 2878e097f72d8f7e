//! Settings of `math`: where the right answer is, and where the answer must be.

use serde::{Deserialize, Serialize};

use super::settings::{RuleSettings, WrongSetting};

/// Settings of the rule `math`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MathSettings {
    /// The right answer to every prompt. Default none: that of the prompt's row.
    pub answer: Option<String>,
    /// The field of the prompt's row that holds the right answer. Default `answer`.
    pub answer_field: String,
    /// Only the content of `\boxed{}` is an answer; without it there is none. Default false: else
    /// what follows "answer is" or `####`, else the last formula, else the last number.
    pub boxed: bool,
}

impl Default for MathSettings {
    fn default() -> Self {
        Self { answer: None, answer_field: "answer".to_owned(), boxed: false }
    }
}

impl RuleSettings for MathSettings {
    fn wrong(&self) -> Vec<WrongSetting> {
        let empty = |field: &str, value: &str, remedy| {
            value.trim().is_empty().then(|| WrongSetting::new(field, format!("{value:?}"), remedy))
        };
        let answer = self.answer.as_ref().and_then(|answer| {
            empty("answer", answer, "no answer is right; write one, or leave it to the prompt's row")
        });
        let field =
            empty("answer_field", &self.answer_field, "name a field of the row, \"answer\" for example");
        answer.into_iter().chain(field).collect()
    }
}
