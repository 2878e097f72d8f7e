//! How a model is told of its tools. A chat template that renders tools in the form of
//! [`super::tool_calls`] does it; any other model is told in the system message, in the words of
//! Hermes and Qwen.

use serde_json::{Value, json};

use super::tool_calls::{TurnPart, parts};
use super::{Codec, TextError};

/// How tools, calls and results are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolForm {
    /// By the chat template: `tools`, and results as messages of the role `tool`.
    Template,
    /// In words: tools at the end of the system message, and results as a message of the user.
    SystemMessage,
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

impl Codec {
    /// How the model is told of tools, found by rendering one, a call of it and its result.
    #[must_use]
    pub fn tool_form(&self) -> ToolForm {
        *self.tool_form.get_or_init(|| match self.renders_tools() {
            Ok(true) => ToolForm::Template,
            // A template that refuses a tool renders none.
            Ok(false) | Err(_) => ToolForm::SystemMessage,
        })
    }

    fn renders_tools(&self) -> Result<bool, TextError> {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        let tool = json!({ "name": TOOL, "description": "Nothing.", "parameters": schema });
        let tools = [json!({ "type": "function", "function": tool })];
        let user = json!({ "role": "user", "content": "?" });
        if !self.render_objects(std::slice::from_ref(&user), &tools)?.contains(TOOL) {
            return Ok(false);
        }
        let arguments = json!({ "x": 1 });
        let call = json!({ "id": "call00000", "type": "function", "function": { "name": TOOL, "arguments": arguments } });
        let turn = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        let result = json!({ "role": "tool", "name": TOOL, "tool_call_id": "call00000", "content": RESULT });
        let rendered = self.render_objects(&[user, turn, result], &tools)?;
        let called = TurnPart::Call { name: TOOL.to_owned(), arguments };
        Ok(rendered.contains(RESULT) && parts(&rendered).contains(&called))
    }

    /// The tokens of a conversation that ends where the policy's turn starts, in which it may call
    /// `tools`. Both are objects of the chat template.
    ///
    /// # Errors
    /// As [`Self::open_chat`].
    pub fn open_with_tools(&self, messages: &[Value], tools: &[Value]) -> Result<Vec<u32>, TextError> {
        if self.tool_form() == ToolForm::Template {
            return self.open_chat(messages, tools);
        }
        let lines: Vec<String> = tools.iter().map(Value::to_string).collect();
        let words = WORDS.replace("{tools}", &lines.join("\n"));
        let mut messages = messages.to_vec();
        match messages.first().filter(|first| first["role"] == "system").map(|first| first["content"].clone())
        {
            Some(system) => {
                let system = system.as_str().unwrap_or_default();
                messages[0]["content"] = format!("{system}\n\n{words}").into();
            }
            None => messages.insert(0, json!({ "role": "system", "content": words })),
        }
        self.open_chat(&messages, &[])
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
        if self.tool_form() == ToolForm::Template {
            let message =
                |(name, text): &(&str, &str)| json!({ "role": "tool", "name": name, "content": text });
            let messages: Vec<Value> = results.iter().map(message).collect();
            return self.continue_chat(turn, &messages, tools);
        }
        let shown = |(_, text): &(&str, &str)| format!("<tool_response>\n{text}\n</tool_response>");
        let shown: Vec<String> = results.iter().map(shown).collect();
        self.continue_chat(turn, &[json!({ "role": "user", "content": shown.join("\n") })], &[])
    }
}
