//! One row: its prompt as a conversation, and the fields that rewards receive.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AnswerCheck, DatasetSpec};
use crate::blob::Sha;
use crate::env_step::Settings;

/// The name under which rewards get the answer.
pub const ANSWER: &str = "answer";

/// A row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The prompt. `[messages]`, 1 or more; the last is the user's.
    pub messages: Vec<ChatMessage>,
    /// All other fields by name, the answer as `answer`.
    pub fields: Settings,
}

/// A message of a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// The speaker.
    pub role: ChatRole,
    /// The text.
    pub content: String,
}

/// The speaker of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChatRole {
    /// The system message.
    System,
    /// The user.
    User,
    /// The assistant.
    Assistant,
}

impl Row {
    /// Parses a line.
    ///
    /// # Errors
    /// The message names the invalid field and the remedy.
    pub fn read(line: &[u8], spec: &DatasetSpec) -> Result<Self, String> {
        let mut fields: Settings = serde_json::from_slice(line).map_err(|e| {
            let words = e.to_string();
            // The parser counts lines within the one that it was given.
            let what = words.split(" at line ").next().unwrap_or_default();
            format!("it is no JSON object: {what} at column {}", e.column())
        })?;
        let prompt = take(&mut fields, "prompt", &spec.prompt)?;
        let messages = messages(&spec.prompt, prompt)?;
        if !spec.answer.is_empty() {
            let value = take(&mut fields, "answer", &spec.answer)?;
            let answer = answer(spec, value)?;
            fields.insert(ANSWER.to_owned(), Value::String(answer));
        }
        Ok(Self { messages, fields })
    }

    /// The answer, if rows have one.
    #[must_use]
    pub fn answer(&self) -> Option<&str> {
        self.fields.get(ANSWER).and_then(Value::as_str)
    }

    /// A key that distinguishes prompts.
    pub(super) fn key(&self) -> u64 {
        let written = serde_json::to_vec(&self.messages).expect("messages are JSON");
        let Sha([a, b, c, d, e, f, g, h, ..]) = Sha::of(&written);
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

/// Removes the field that the run file names by `of`.
fn take(fields: &mut Settings, of: &str, name: &str) -> Result<Value, String> {
    let missing = || {
        let others: Vec<&str> = fields.keys().map(String::as_str).collect();
        format!(
            "field={name:?} is not there, only {}; name the right one as environment.{of}, or mend the row",
            if others.is_empty() { "nothing".to_owned() } else { others.join(", ") }
        )
    };
    if !fields.contains_key(name) {
        return Err(missing());
    }
    Ok(fields.remove(name).unwrap_or_default())
}

fn messages(name: &str, prompt: Value) -> Result<Vec<ChatMessage>, String> {
    let messages = match prompt {
        Value::String(content) => vec![ChatMessage { role: ChatRole::User, content }],
        Value::Array(_) => serde_json::from_value(prompt).map_err(|e| {
            format!("field={name:?} is no list of chat messages: {e}; write {{\"role\": \"user\", \"content\": \"…\"}} for each")
        })?,
        other => {
            return Err(format!(
                "field={name:?} is {}; write text or a list of chat messages",
                kind(&other)
            ));
        }
    };
    match messages.last() {
        Some(ChatMessage { role: ChatRole::User, content }) if !content.trim().is_empty() => Ok(messages),
        Some(ChatMessage { role: ChatRole::User, .. }) => {
            Err(format!("field={name:?} asks nothing; write a prompt, or take the row out"))
        }
        Some(_) | None => {
            Err(format!("field={name:?} does not end with a message of the user; the policy speaks next"))
        }
    }
}

fn answer(spec: &DatasetSpec, value: Value) -> Result<String, String> {
    let name = &spec.answer;
    let text = match value {
        Value::String(text) => text,
        Value::Number(number) => number.to_string(),
        Value::Bool(word) => word.to_string(),
        other => {
            return Err(format!("field={name:?} is {}; write text, a number, true or false", kind(&other)));
        }
    };
    match spec.check {
        AnswerCheck::Number if whole_number(&text).is_none() => Err(format!(
            "field={name:?} is {text:?}, no whole number; choose another environment.check, or mend the row"
        )),
        AnswerCheck::Exact if text.trim().is_empty() => Err(format!(
            "field={name:?} is empty, which no answer can match; choose another environment.check, or repair the row"
        )),
        AnswerCheck::ByReward | AnswerCheck::Number | AnswerCheck::Exact => Ok(text),
    }
}

/// A text as a whole number, ignoring commas between digits.
#[must_use]
pub fn whole_number(text: &str) -> Option<i64> {
    text.trim().replace(',', "").parse().ok()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
