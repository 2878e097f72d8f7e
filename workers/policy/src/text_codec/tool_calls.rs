//! Calls of tools in a turn's text, in the forms that models were trained on. Which form a model has is found
//! by its chat template; see [`super::ToolForm`].

use serde::Deserialize;
use serde_json::{Map, Value};

mod deepseek;
mod llama;
mod mistral;
mod tagged;
mod typed;

/// How a model writes calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallForm {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen2.5, Qwen3, Granite 4.
    Json,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`:
    /// Qwen3-Coder.
    Function,
    /// The same between `<seed:tool_call>` and `</seed:tool_call>`: Seed-OSS.
    Seed,
    /// `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM-4.5.
    ArgKeys,
    /// `[TOOL_CALLS][{"name": …, "arguments": {…}}]` or `[TOOL_CALLS]NAME[ARGS]{…}`: Mistral.
    Mistral,
    /// `<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>`: Nemotron Nano 2, Llama Nemotron.
    List,
    /// `<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke></minimax:tool_call>`:
    /// MiniMax M2.
    MiniMax,
    /// The turn is `{"name": …, "parameters": {…}}` and nothing else: Llama 3.
    Llama,
    /// `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, the arguments in a block of JSON, and
    /// `<｜tool▁call▁end｜>`; or `NAME<｜tool▁sep｜>{…}` between the same marks: DeepSeek V3.
    DeepSeek,
}

/// A part of a turn's text.
#[derive(Debug, Clone, PartialEq)]
pub enum TurnPart<'a> {
    /// Text outside of calls, as it is; never empty.
    Text(&'a str),
    /// A call.
    Call {
        /// The tool, as the policy wrote it.
        name: String,
        /// As the policy wrote them; an empty object where it wrote none.
        arguments: Value,
    },
    /// A call that cannot be read.
    Malformed {
        /// Its text, with the marks around it.
        written: &'a str,
        /// What is wrong with it.
        reason: String,
    },
}

impl CallForm {
    /// All forms.
    pub const ALL: [Self; 9] = [
        Self::Json,
        Self::Function,
        Self::Seed,
        Self::ArgKeys,
        Self::Mistral,
        Self::List,
        Self::MiniMax,
        Self::Llama,
        Self::DeepSeek,
    ];

    /// The parts of a turn's text, in order. The last call may lack its end where that is also the
    /// turn's. `tools` are objects of the chat template: where a form writes values without types,
    /// their schemas tell a number from a text.
    #[must_use]
    pub fn parts<'a>(self, text: &'a str, tools: &[Value]) -> Vec<TurnPart<'a>> {
        match self {
            Self::Json => tagged::between(text, tagged::CALL, tagged::json),
            Self::Function => tagged::sections(text, tagged::CALL, |inner| tagged::function(inner, tools)),
            Self::Seed => tagged::sections(text, tagged::SEED, |inner| tagged::function(inner, tools)),
            Self::ArgKeys => tagged::between(text, tagged::CALL, |inner| tagged::arg_keys(inner, tools)),
            Self::Mistral => mistral::parts(text),
            Self::List => tagged::sections(text, tagged::LIST, tagged::list),
            Self::MiniMax => tagged::sections(text, tagged::MINIMAX, |inner| tagged::invoke(inner, tools)),
            Self::Llama => llama::parts(text),
            Self::DeepSeek => deepseek::parts(text),
        }
    }

    /// A call in this form, for a policy that wrote one which cannot be read.
    #[must_use]
    pub const fn example(self) -> &'static str {
        match self {
            Self::Json => r#"<tool_call>{"name": …, "arguments": {…}}</tool_call>"#,
            Self::Function => {
                "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>"
            }
            Self::Seed => {
                "<seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>"
            }
            Self::List => r#"<TOOLCALL>[{"name": …, "arguments": {…}}]</TOOLCALL>"#,
            Self::MiniMax => {
                "<minimax:tool_call><invoke name=\"NAME\"><parameter name=\"KEY\">VALUE</parameter></invoke>\
                 </minimax:tool_call>"
            }
            Self::ArgKeys => "<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>",
            Self::Mistral => r#"[TOOL_CALLS][{"name": …, "arguments": {…}}]"#,
            Self::Llama => r#"{"name": …, "parameters": {…}}"#,
            Self::DeepSeek => {
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, ```json, {…}, ```, <｜tool▁call▁end｜>"
            }
        }
    }

    /// The marks of calls that are special tokens of some tokenizers. They belong to a turn's text.
    pub(super) const fn marks(self) -> &'static [&'static str] {
        match self {
            Self::Json | Self::Function => &[tagged::CALL.0, tagged::CALL.1],
            Self::Seed => &[tagged::SEED.0, tagged::SEED.1],
            Self::List => &[tagged::LIST.0, tagged::LIST.1],
            Self::MiniMax => &[tagged::MINIMAX.0, tagged::MINIMAX.1],
            Self::ArgKeys => {
                &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
            }
            Self::Mistral => &[mistral::OPEN, mistral::CALL_ID, mistral::ARGUMENTS],
            Self::Llama => &[llama::TAG],
            Self::DeepSeek => &deepseek::MARKS,
        }
    }
}

/// A call as JSON.
#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(default, alias = "parameters")]
    arguments: Value,
}

impl Written {
    fn part<'a>(self) -> TurnPart<'a> {
        let (name, arguments) = self.call();
        TurnPart::Call { name, arguments }
    }

    fn call(self) -> (String, Value) {
        match self.arguments {
            Value::Null => (self.name, Value::Object(Map::default())),
            arguments => (self.name, arguments),
        }
    }
}

/// Appends text, if there is any.
fn keep<'a>(text: &'a str, parts: &mut Vec<TurnPart<'a>>) {
    if !text.is_empty() {
        parts.push(TurnPart::Text(text));
    }
}

/// A tool's name, without the white space around it.
fn tool_name(written: &str) -> Result<&str, String> {
    let name = written.trim();
    if name.is_empty() { Err("it lacks the tool's name".to_owned()) } else { Ok(name) }
}

/// The first JSON value of a text, and what follows it.
fn first_value<T: for<'de> Deserialize<'de>>(text: &str) -> Result<(T, &str), String> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter();
    match values.next() {
        Some(Ok(value)) => Ok((value, &text[values.byte_offset()..])),
        Some(Err(error)) => Err(error.to_string()),
        None => Err("there is no JSON".to_owned()),
    }
}

#[cfg(test)]
mod tests;
