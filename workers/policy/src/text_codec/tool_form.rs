//! How a model is told of its tools. A chat template that renders tools, and calls in a form of
//! [`CallForm`], does it; any other model is told in the system message, in the words of Hermes and Qwen.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::tool_calls::{CallForm, TurnPart};
use super::{Codec, TURN, TextError};

/// How tools, calls and results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolForm {
    /// By the chat template: `tools`, and results as messages of the role `tool`.
    Template {
        /// How the template writes calls, and so the policy.
        calls: CallForm,
        /// How the template wants the arguments of past calls.
        arguments: Arguments,
    },
    /// In words: tools at the end of the system message, calls as [`CallForm::Json`], and results
    /// as a message of the user.
    SystemMessage,
}

/// How a template takes the arguments of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arguments {
    /// As an object.
    Object,
    /// As the text of one.
    Text,
}

impl ToolForm {
    /// How the policy writes calls.
    #[must_use]
    pub const fn calls(self) -> CallForm {
        match self {
            Self::Template { calls, .. } => calls,
            Self::SystemMessage => CallForm::Json,
        }
    }
}

/// What Hermes and Qwen are told. The tools stand at `{tools}`, one on each line.
const WORDS: &str = r#"# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"#;

/// Names of a tool and of its result, which no template has by itself.
const TOOL: &str = "millrace_tool";
const RESULT: &str = "millrace-result";
/// The id of a call. Mistral's templates take nine letters and digits.
const CALL: &str = "call00000";

impl Codec {
    /// How the model is told of tools, found by rendering one, a call of it and its result.
    #[must_use]
    pub fn tool_form(&self) -> ToolForm {
        *self.tool_form.get_or_init(|| {
            // A template that refuses a tool renders none.
            let written = |arguments| Some((self.written_calls(arguments).ok()??, arguments));
            match written(Arguments::Object).or_else(|| written(Arguments::Text)) {
                Some((calls, arguments)) => ToolForm::Template { calls, arguments },
                None => ToolForm::SystemMessage,
            }
        })
    }

    /// The form in which the template writes calls; `None` where it leaves out tools, calls or results.
    fn written_calls(&self, arguments: Arguments) -> Result<Option<CallForm>, TextError> {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        let tool = json!({ "name": TOOL, "description": "Nothing.", "parameters": schema });
        let tools = [json!({ "type": "function", "function": tool })];
        let user = json!({ "role": "user", "content": "?" });
        let opened = self.render_objects(std::slice::from_ref(&user), &tools)?;
        if !opened.contains(TOOL) {
            return Ok(None);
        }
        let result = json!({ "role": "tool", "name": TOOL, "tool_call_id": CALL, "content": RESULT });
        let sampled = json!({ "role": "assistant", "content": TURN });
        let continued = self.render_objects(&[user.clone(), sampled, result.clone()], &tools)?;
        if !continued.split_once(TURN).is_some_and(|(_, after)| after.contains(RESULT)) {
            return Ok(None);
        }
        let function = json!({ "name": TOOL, "arguments": { "x": 1 } });
        let call = json!({ "id": CALL, "type": "function", "function": function });
        let turn = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        let conversation = [user, turn, result];
        let rendered = match arguments {
            Arguments::Object => self.render_objects(&conversation, &tools),
            Arguments::Text => self.render_objects(&with_arguments_as_text(&conversation), &tools),
        }?;
        let called = TurnPart::Call { name: TOOL.to_owned(), arguments: json!({ "x": 1 }) };
        // Some forms are read in the whole text; Llama's only where the turn begins with it.
        let same = opened.chars().zip(rendered.chars()).take_while(|(a, b)| a == b);
        let turn = &rendered[same.map(|(same, _)| same.len_utf8()).sum()..];
        let is_read = |form: &CallForm| {
            [turn, &rendered].into_iter().any(|text| form.parts(text, &tools).contains(&called))
        };
        Ok(CallForm::ALL.into_iter().find(is_read))
    }

    /// The tokens of a conversation that ends where the policy's turn starts, in which it may call
    /// `tools`. Both are objects of the chat template.
    ///
    /// # Errors
    /// As [`Self::open_chat`].
    pub fn open_with_tools(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<u32>, TextError> {
        let (messages, given) = self.in_form(messages, tools);
        if given.len() < tools.len() {
            return self.open_chat(&told(messages.into_owned(), tools), given);
        }
        self.open_chat(&messages, given)
    }

    /// The tokens after the policy's turn `turn` when `messages` follow it, of which some may be
    /// results of its calls. The tokens before stay as they are.
    ///
    /// # Errors
    /// As [`Self::continue_chat`].
    pub fn continue_with_tools(
        &self,
        turn: &[u32],
        messages: &[Value],
        tools: &[Value],
    ) -> Result<Vec<u32>, TextError> {
        let (messages, given) = self.in_form(messages, tools);
        self.continue_chat(turn, &messages, given)
    }

    /// The tokens after the policy's turn `turn` when its calls had these `results`, of each the
    /// tool's name and the text.
    ///
    /// # Errors
    /// As [`Self::continue_chat`].
    pub fn continue_with_results(
        &self,
        turn: &[u32],
        results: &[(&str, &str)],
        tools: &[Value],
    ) -> Result<Vec<u32>, TextError> {
        let message = |(at, (name, text)): (usize, &(&str, &str))| {
            let id = format!("call{at:05}");
            json!({ "role": "tool", "name": name, "tool_call_id": id, "content": text })
        };
        let messages: Vec<Value> = results.iter().enumerate().map(message).collect();
        self.continue_with_tools(turn, &messages, tools)
    }

    /// The text of a turn in which the policy may call tools: without special tokens, but for those
    /// that mark calls.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_with_calls(&self, turn: &[u32]) -> Result<String, TextError> {
        let marks = self.tool_form().calls().marks();
        let marks: Vec<u32> = marks.iter().filter_map(|mark| self.token(mark)).collect();
        if !turn.iter().any(|token| marks.contains(token)) {
            return self.decode(turn, false);
        }
        let added = self.tokenizer.get_added_tokens_decoder();
        let is_special = |token: &u32| added.get(token).is_some_and(|added| added.special);
        let text: Vec<u32> =
            turn.iter().copied().filter(|token| marks.contains(token) || !is_special(token)).collect();
        self.decode(&text, true)
    }

    /// The parts of a turn's text, where the policy may call `tools`. A call that was only thought of is text.
    #[must_use]
    pub fn calls_in<'a>(&self, text: &'a str, tools: &[Value]) -> Vec<TurnPart<'a>> {
        let (thought, said) = self.split_thought(text);
        let thought = Some(TurnPart::Text(thought)).filter(|_| !thought.is_empty());
        thought.into_iter().chain(self.tool_form().calls().parts(said, tools)).collect()
    }

    /// The messages as the template takes them, and the tools that it is given.
    fn in_form<'a>(&self, messages: &'a [Value], tools: &'a [Value]) -> (Cow<'a, [Value]>, &'a [Value]) {
        let is_of_tools = |message: &Value| message["role"] == "tool" || message["tool_calls"].is_array();
        if tools.is_empty() && !messages.iter().any(is_of_tools) {
            return (messages.into(), tools);
        }
        match self.tool_form() {
            ToolForm::Template { arguments: Arguments::Object, .. } => (messages.into(), tools),
            ToolForm::Template { arguments: Arguments::Text, .. } => {
                (with_arguments_as_text(messages).into(), tools)
            }
            ToolForm::SystemMessage => (in_words(messages).into(), &[]),
        }
    }
}

/// The messages with the arguments of calls as [`Arguments::Text`].
fn with_arguments_as_text(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        for arguments in calls.into_iter().flatten().map(|call| &mut call["function"]["arguments"]) {
            *arguments = Value::String(arguments.to_string());
        }
    }
    messages
}

/// The messages with the system's words about `tools`.
fn told(mut messages: Vec<Value>, tools: &[Value]) -> Vec<Value> {
    let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
    let words = WORDS.replace("{tools}", &lines.join("\n"));
    match messages.first_mut().filter(|first| first["role"] == "system") {
        Some(system) => {
            let said = system["content"].as_str().unwrap_or_default();
            system["content"] = format!("{said}\n\n{words}").into();
        }
        None => messages.insert(0, json!({ "role": "system", "content": words })),
    }
    messages
}

/// The messages in words alone: calls in the assistant's text, results as a message of the user.
fn in_words(messages: &[Value]) -> Vec<Value> {
    let mut said: Vec<Value> = Vec::with_capacity(messages.len());
    let mut follows_result = false;
    for message in messages {
        let text = message["content"].as_str().unwrap_or_default();
        let is_result = message["role"] == "tool";
        if is_result {
            let shown = format!("<tool_response>\n{text}\n</tool_response>");
            match said.last_mut().filter(|_| follows_result) {
                Some(before) => {
                    let before_text = before["content"].as_str().unwrap_or_default();
                    before["content"] = format!("{before_text}\n{shown}").into();
                }
                None => said.push(json!({ "role": "user", "content": shown })),
            }
        } else if let Some(calls) = message["tool_calls"].as_array() {
            let call = |call: &Value| {
                let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
                format!("<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>")
            };
            let words = Some(text.to_owned()).filter(|text| !text.is_empty());
            let words: Vec<String> = words.into_iter().chain(calls.iter().map(call)).collect();
            said.push(json!({ "role": "assistant", "content": words.join("\n") }));
        } else {
            said.push(message.clone());
        }
        follows_result = is_result;
    }
    said
}

#[cfg(test)]
mod tests;
