//! Arguments that a form writes as text: the tool's schema tells a number from a text.

use serde_json::{Map, Value};

/// An argument as it was written.
pub(super) struct Given<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

/// A call of the tool `name`. A value that is not of its type stays text, so that a check of the call
/// finds it.
pub(super) fn typed(name: &str, given: &[Given<'_>], tools: &[Value]) -> (String, Value) {
    let function = tools.iter().map(|tool| &tool["function"]).find(|function| function["name"] == name);
    let schema = |key: &str| function.map(|function| &function["parameters"]["properties"][key]);
    let argument = |of: &Given<'_>| {
        let value = schema(of.key).filter(|schema| !allows(schema, "string"));
        let value = value.and_then(|_| read(of.value.trim()));
        (of.key.to_owned(), value.unwrap_or_else(|| of.value.into()))
    };
    (name.to_owned(), Value::Object(given.iter().map(argument).collect::<Map<_, _>>()))
}

/// Whether a schema lets a value be of this type. One that says nothing of types does.
fn allows(schema: &Value, wanted: &str) -> bool {
    match &schema["type"] {
        Value::String(one) => one == wanted,
        Value::Array(several) => several.iter().any(|one| one == wanted),
        _ => match schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
            Some(several) => several.iter().any(|one| allows(one, wanted)),
            None => schema["enum"].as_array().is_none_or(|values| values.iter().any(Value::is_string)),
        },
    }
}

/// A value as JSON, or as Python writes one.
fn read(text: &str) -> Option<Value> {
    match text {
        "True" => Some(true.into()),
        "False" => Some(false.into()),
        "None" => Some(Value::Null),
        text => serde_json::from_str(text).ok(),
    }
}
