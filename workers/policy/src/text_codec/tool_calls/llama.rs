//! Llama's calls: the turn is a JSON object, or several with semicolons between them.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{TurnPart, first_value, keep};

/// What may stand before them: then they are meant as calls.
pub(super) const TAG: &str = "<|python_tag|>";

/// A call. An object without arguments is an answer, as any other JSON is.
#[derive(Deserialize)]
struct Object {
    name: String,
    #[serde(alias = "arguments")]
    parameters: Map<String, Value>,
}

pub(super) fn parts(text: &str) -> Vec<TurnPart<'_>> {
    let trimmed = text.trim_start();
    let (mut rest, is_tagged) = trimmed.strip_prefix(TAG).map_or((trimmed, false), |rest| (rest, true));
    let mut parts = Vec::new();
    loop {
        let (Object { name, parameters }, after) = match first_value(rest.trim_start()) {
            Ok(found) => found,
            Err(_) if !parts.is_empty() => break,
            Err(reason) if is_tagged => return vec![TurnPart::Malformed { written: text, reason }],
            Err(_) => {
                rest = text;
                break;
            }
        };
        parts.push(TurnPart::Call { name, arguments: Value::Object(parameters) });
        let next = after.trim_start().strip_prefix(';');
        rest = next.unwrap_or(after);
        if next.is_none() {
            break;
        }
    }
    keep(rest, &mut parts);
    parts
}
