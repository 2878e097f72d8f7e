//! A call and its answer, whatever the dialect.

use std::collections::BTreeMap;

use millrace_schemas::env_step::TurnLimits;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// A call to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// The conversation, as objects of the chat template: `role`, `content` as text, and where they
    /// are, `tool_calls` and `tool_call_id`. `[M]`, 1 or more; the last is not the assistant's.
    pub messages: Vec<Value>,
    /// Declarations of functions, as `{"type": "function", "function": …}`. `[T]`
    pub tools: Vec<Value>,
    /// Tools, by name, whose calls are written in another way than a function's.
    pub kinds: BTreeMap<String, ToolKind>,
    /// Limits of an answer.
    pub limits: TurnLimits,
    /// Answers that are asked for, 1 or more.
    pub choices: u32,
    /// The answer comes as server-sent events.
    pub stream: bool,
    /// The last event has the usage.
    pub stream_usage: bool,
}

impl Call {
    /// Bytes of the conversation's texts together.
    pub(crate) fn text_bytes(&self) -> usize {
        self.messages.iter().filter_map(|message| Some(message["content"].as_str()?.len())).sum()
    }
}

/// What a tool is, if no plain function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolKind {
    /// It takes a text.
    Custom,
    /// A function of this namespace.
    Within(String),
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended it.
    Stop,
    /// A text of the call's `stop` ended it.
    StopText,
    /// It has as many tokens as it may.
    Length,
    /// It calls tools.
    ToolCalls,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ToolCall {
    /// Unique in the session, and the same when the turn is read again.
    pub(crate) id: String,
    pub(crate) name: String,
    /// An object, as the model wrote it.
    pub(crate) arguments: Value,
}

/// An answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    /// The turn's number in its rollout, from 1.
    pub(crate) turn: u32,
    /// The text, without calls of tools.
    pub(crate) text: String,
    pub(crate) tool_calls: Vec<ToolCall>,
    pub(crate) finish: Finish,
    /// The text that ended it.
    pub(crate) stop: Option<String>,
    /// Tokens of the context.
    pub(crate) prompt_tokens: usize,
    /// Tokens sampled.
    pub(crate) completion_tokens: usize,
}

impl Reply {
    /// The answer as the message that the agent sends back with its next call.
    pub(crate) fn message(&self) -> Value {
        assistant(&self.text, self.tool_calls.iter().map(ToolCall::object).collect())
    }
}

impl ToolCall {
    pub(crate) fn object(&self) -> Value {
        json!({
            "id": self.id,
            "type": "function",
            "function": { "name": self.name, "arguments": self.arguments },
        })
    }
}

/// An assistant's message as the chat template takes it.
pub(crate) fn assistant(text: &str, tool_calls: Vec<Value>) -> Value {
    let mut message = json!({ "role": "assistant", "content": text });
    if !tool_calls.is_empty() {
        message["tool_calls"] = Value::Array(tool_calls);
    }
    message
}

/// A link of the chain over messages: two conversations have the same link after a message if they
/// are the same up to it.
pub(crate) type Link = [u8; 32];

/// The link after `message`, whose predecessor has the link `before`. White space around an
/// assistant's text does not count: agents trim it.
pub(crate) fn link(before: &Link, message: &Value) -> Link {
    let mut message = message.clone();
    if message["role"] == "assistant"
        && let Some(text) = message["content"].as_str().map(|text| text.trim().to_owned())
    {
        message["content"] = Value::String(text);
    }
    hash(before, message)
}

/// The hash of a value after `before`. A number is its value: an agent that is written in JavaScript sends 1 back where
/// the model wrote 1.0 or 1e0.
pub(crate) fn hash(before: &Link, mut value: Value) -> Link {
    round(&mut value);
    // Equal values have equal text, in whatever order their fields are written.
    value.sort_all_objects();
    Sha256::new().chain_update(before).chain_update(value.to_string()).finalize().into()
}

/// Whether `sent` is an object with all fields of `sampled`, and perhaps more.
pub(crate) fn only_adds(sampled: &Value, sent: &Value) -> bool {
    let (Value::Object(sampled), Value::Object(sent)) = (sampled, sent) else { return false };
    let link = |value: &Value| hash(&Link::default(), value.clone());
    sampled.iter().all(|(name, of)| sent.get(name).is_some_and(|sent| link(of) == link(sent)))
}

/// Makes all numbers of JavaScript's kind.
fn round(value: &mut Value) {
    match value {
        Value::Number(number) => *value = json!(number.as_f64()),
        Value::Array(values) => values.iter_mut().for_each(round),
        Value::Object(fields) => fields.values_mut().for_each(round),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}
