//! Calls of tools in a turn's text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the form
//! that Hermes, Qwen and SmolLM were trained on.

use serde::Deserialize;
use serde_json::Value;

use crate::call::ToolCall;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(default, alias = "parameters")]
    arguments: Value,
}

/// The text without its calls, and the calls. What is no call stays text: the agent answers it as it
/// answers any text, and the model learns from that. `turn` makes the ids unique.
pub(crate) fn parse(text: &str, turn: u32) -> (String, Vec<ToolCall>) {
    let (mut rest, mut kept, mut calls) = (text, String::new(), Vec::new());
    while let Some((before, after)) = rest.split_once(OPEN) {
        // The last one may lack its end where that is also the turn's.
        let (inner, next) = after.split_once(CLOSE).unwrap_or((after, ""));
        kept.push_str(before);
        match serde_json::from_str::<Written>(inner.trim()) {
            Ok(Written { name, arguments }) => {
                let arguments =
                    if arguments.is_null() { Value::Object(Default::default()) } else { arguments };
                calls.push(ToolCall { id: format!("call_{turn}_{}", calls.len()), name, arguments });
            }
            Err(_) => kept.push_str(&rest[before.len()..rest.len() - next.len()]),
        }
        rest = next;
    }
    kept.push_str(rest);
    let kept = if calls.is_empty() { kept } else { kept.trim().to_owned() };
    (kept, calls)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_taken_out_of_the_text() {
        let text = "I look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \".\"}}\n</tool_call>\n\
                    <tool_call>{\"name\": \"pwd\"}</tool_call>";
        let (kept, calls) = parse(text, 7);
        assert_eq!(kept, "I look.");
        let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["call_7_0", "call_7_1"]);
        assert_eq!((calls[0].name.as_str(), &calls[0].arguments), ("ls", &json!({ "path": "." })));
        assert_eq!(calls[1].arguments, json!({}));
    }

    #[test]
    fn what_is_no_call_stays_text() {
        for text in [
            "no call",
            " spaces stay ",
            "<tool_call>not json</tool_call> after",
            "<tool_call>{\"name\": 3}</tool_call>",
            "<tool_call>",
            "</tool_call>",
        ] {
            assert_eq!(parse(text, 1), (text.to_owned(), vec![]));
        }
        let (kept, calls) = parse("<tool_call>{</tool_call><tool_call>{\"name\":\"a\"}", 1);
        assert_eq!((kept.as_str(), calls.len()), ("<tool_call>{</tool_call>", 1));
    }
}
