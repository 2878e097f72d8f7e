//! Fields of calls that several dialects have.

use millrace_schemas::limits::{MAX_STOP_STRING_BYTES, MAX_STOP_STRINGS};
use serde_json::Value;

use crate::refusal::Refusal;

/// Values of JSON in one call at most, with those in the arguments of tools. One of a few bytes becomes hundreds in
/// memory.
const MAX_VALUES: usize = 100_000;

/// Room for the values of a call.
pub(super) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MAX_VALUES)
    }
}

impl Room {
    /// Takes the room that the values of this text need, before it is parsed.
    pub(super) fn take(&mut self, json: &[u8]) -> Result<(), Refusal> {
        let left = self.0.checked_sub(values(json));
        self.0 = left.ok_or_else(|| {
            Refusal::bad(format!("the call has more than {MAX_VALUES} values; send fewer lists and objects"))
        })?;
        Ok(())
    }
}

/// How many values a text of JSON has at most: what opens one or parts two of them, outside of strings.
fn values(json: &[u8]) -> usize {
    let (mut values, mut in_string, mut is_escaped) = (1, false, false);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' | b'[' | b'{' if !in_string => values += 1,
            _ => {}
        }
    }
    values
}

/// Refuses a field that asks for what is not done here. `null` asks for nothing.
pub(super) fn refuse(
    body: &Value,
    field: &str,
    fine: impl Fn(&Value) -> bool,
    why: &str,
) -> Result<(), Refusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(()),
        Some(value) if fine(value) => Ok(()),
        Some(value) => Err(Refusal::bad(format!("{field}={value} is not supported: {why}"))),
    }
}

/// A list; empty if there is none.
pub(super) fn list<'a>(body: &'a Value, field: &str) -> Result<&'a [Value], Refusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(&[]),
        Some(Value::Array(values)) => Ok(values),
        Some(_) => Err(Refusal::bad(format!("{field} must be a list"))),
    }
}

/// A truth value; false if there is none.
pub(super) fn flag(body: &Value, field: &str) -> Result<bool, Refusal> {
    match body.get(field) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(value) => Err(Refusal::bad(format!("{field}={value} must be true or false"))),
    }
}

/// Tokens of the answer at most, by the first of these fields.
pub(super) fn max_tokens(body: &Value, fields: &[&str]) -> Result<Option<u32>, Refusal> {
    let Some((field, value)) =
        fields.iter().find_map(|field| Some((field, body.get(field).filter(|value| !value.is_null())?)))
    else {
        return Ok(None);
    };
    match value.as_u64() {
        Some(tokens @ 1..) => Ok(Some(u32::try_from(tokens).unwrap_or(u32::MAX))),
        Some(0) | None => Err(Refusal::bad(format!("{field}={value} must be a whole number, 1 or more"))),
    }
}

/// Texts that end the answer: none, one or several.
pub(super) fn stop(body: &Value, field: &str) -> Result<Vec<String>, Refusal> {
    let fail = || {
        Refusal::bad(format!(
            "{field} must be a text or a list of at most {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_STRING_BYTES} bytes"
        ))
    };
    let texts: Vec<String> = match body.get(field) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => vec![text.clone()],
        Some(Value::Array(texts)) => texts
            .iter()
            .map(|text| text.as_str().map(str::to_owned))
            .collect::<Option<_>>()
            .ok_or_else(fail)?,
        Some(_) => return Err(fail()),
    };
    let fits = |text: &String| (1..=MAX_STOP_STRING_BYTES).contains(&text.len());
    if texts.len() <= MAX_STOP_STRINGS && texts.iter().all(fits) { Ok(texts) } else { Err(fail()) }
}

/// The text of a message's content: a text, or a list of parts of which all are text.
pub(super) fn text(content: &Value, at: &str) -> Result<String, Refusal> {
    match content {
        Value::Null => Ok(String::new()),
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => parts.iter().map(|part| part_text(part, at)).collect(),
        _ => Err(Refusal::bad(format!("{at}.content must be a text or a list of parts"))),
    }
}

/// The text of one part.
pub(super) fn part_text(part: &Value, at: &str) -> Result<String, Refusal> {
    let kind = part["type"].as_str().unwrap_or("");
    match part["text"].as_str() {
        Some(text) if matches!(kind, "text" | "input_text" | "output_text") => Ok(text.to_owned()),
        _ => Err(Refusal::bad(format!("{at}.content has a part of type={kind:?}; only text is supported"))),
    }
}

/// The arguments of a tool's call as an object; what is none stays a text.
pub(super) fn arguments(written: &Value, room: &mut Room) -> Result<Value, Refusal> {
    let Some(text) = written.as_str() else { return Ok(written.clone()) };
    room.take(text.as_bytes())?;
    Ok(serde_json::from_str(text).unwrap_or_else(|_| written.clone()))
}

/// An event of a stream, with its name if the dialect has names.
pub(super) fn event(name: Option<&str>, data: &Value) -> String {
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {data}\n\n")
}
