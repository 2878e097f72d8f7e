//! Calls of tools in a turn's text: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, the form
//! that Hermes, Qwen and SmolLM were trained on.

use serde::Deserialize;
use serde_json::Value;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

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
        /// Its text, with the tags.
        written: &'a str,
        /// What is wrong with it, in the words of the JSON parser.
        reason: String,
    },
}

#[derive(Deserialize)]
struct Written {
    name: String,
    #[serde(default, alias = "parameters")]
    arguments: Value,
}

/// The parts of a turn's text, in order. The last call may lack its end where that is also the turn's.
#[must_use]
pub fn parts(text: &str) -> Vec<TurnPart<'_>> {
    let (mut rest, mut parts) = (text, Vec::new());
    let keep = |text, parts: &mut Vec<_>| match text {
        "" => {}
        text => parts.push(TurnPart::Text(text)),
    };
    while let Some((before, after)) = rest.split_once(OPEN) {
        let (inner, next) = after.split_once(CLOSE).unwrap_or((after, ""));
        keep(before, &mut parts);
        parts.push(match serde_json::from_str::<Written>(inner.trim()) {
            Ok(Written { name, arguments: Value::Null }) => {
                TurnPart::Call { name, arguments: Value::Object(serde_json::Map::default()) }
            }
            Ok(Written { name, arguments }) => TurnPart::Call { name, arguments },
            Err(error) => {
                let written = &rest[before.len()..rest.len() - next.len()];
                TurnPart::Malformed { written, reason: error.to_string() }
            }
        });
        rest = next;
    }
    keep(rest, &mut parts);
    parts
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_taken_out_of_the_text() {
        let text = "I look.\n<tool_call>\n{\"name\": \"ls\", \"arguments\": {\"path\": \".\"}}\n</tool_call>\n\
                    <tool_call>{\"name\": \"pwd\"}</tool_call><tool_call>{\"name\":\"../a\",\"parameters\":[1]}";
        let call = |name: &str, arguments| TurnPart::Call { name: name.to_owned(), arguments };
        let expected = [
            TurnPart::Text("I look.\n"),
            call("ls", json!({ "path": "." })),
            TurnPart::Text("\n"),
            call("pwd", json!({})),
            call("../a", json!([1])),
        ];
        assert_eq!(parts(text), expected);
    }

    #[test]
    fn what_cannot_be_read_is_malformed_with_its_text_and_the_reason() {
        for text in [
            "<tool_call>not json</tool_call>",
            "<tool_call>{\"name\": 3}</tool_call>",
            "<tool_call>{\"arguments\": {}}</tool_call>",
            "<tool_call>{\"name\": \"a\"} {}</tool_call>",
            "<tool_call>[]</tool_call>",
            "<tool_call>",
        ] {
            match &parts(text)[..] {
                [TurnPart::Malformed { written, reason }] => {
                    assert!(*written == text && !reason.is_empty(), "{text}: {written}");
                }
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(parts("</tool_call>"), [TurnPart::Text("</tool_call>")]);
        assert_eq!(parts(""), []);
        let deep = format!("<tool_call>{}</tool_call>", "[".repeat(100_000));
        assert!(matches!(parts(&deep)[..], [TurnPart::Malformed { .. }]), "nesting ends at a bound");
    }
}
