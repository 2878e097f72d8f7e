//! Calls of tools in a turn's text, with ids. What is no call stays text.

use millrace_policy::text_codec::tool_calls::TurnPart;

use crate::call::ToolCall;

/// The text without its calls, and the calls. What is no call stays text: the agent answers it as it
/// answers any text, and the model learns from that. `turn` makes the ids unique: nine letters and digits,
/// since templates of Mistral take no others.
pub(crate) fn with_ids(parts: Vec<TurnPart<'_>>, turn: u32) -> (String, Vec<ToolCall>) {
    let (mut kept, mut calls) = (String::new(), Vec::new());
    for part in parts {
        match part {
            TurnPart::Text(text) | TurnPart::Malformed { written: text, .. } => kept.push_str(text),
            TurnPart::Call { name, arguments } => {
                calls.push(ToolCall { id: format!("t{turn:05}{:03}", calls.len()), name, arguments });
            }
        }
    }
    let kept = if calls.is_empty() { kept } else { kept.trim().to_owned() };
    (kept, calls)
}

#[cfg(test)]
mod tests {
    use millrace_policy::text_codec::tool_calls::CallForm;
    use serde_json::json;

    use super::*;

    fn parse(text: &str, turn: u32) -> (String, Vec<ToolCall>) {
        with_ids(CallForm::Json.parts(text, &[]), turn)
    }

    #[test]
    fn calls_are_taken_out_of_the_text() {
        let text = "I look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \".\"}}\n</tool_call>\n\
                    <tool_call>{\"name\": \"pwd\"}</tool_call>";
        let (kept, calls) = parse(text, 7);
        assert_eq!(kept, "I look.");
        let ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["t00007000", "t00007001"]);
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
