//! A tool as its server declares it, whether arguments fit it, and what a call of it gave.

use millrace_schemas::text::cut;
use serde_json::{Map, Value, json};

/// Bytes of a tool's name at most.
const MAX_NAME: usize = 128;
/// Bytes of a result's text that are kept. Run files keep far less.
const MAX_TEXT: usize = 256 * 1024;

/// A tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// Its name, unique in its server.
    pub name: String,
    /// What it does, for the policy.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

/// What a call gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolResult {
    /// For the policy.
    pub text: String,
    /// The call failed, and the text says why.
    pub is_error: bool,
}

impl Tool {
    /// Reads an entry of `tools/list`; `None` where it cannot be called.
    pub(super) fn read(entry: &Value) -> Option<Self> {
        let name = entry["name"].as_str()?;
        let is_name = (1..=MAX_NAME).contains(&name.len()) && !name.contains(char::is_control);
        let schema = entry.get("inputSchema").filter(|schema| schema.is_object())?;
        let description = entry["description"].as_str().or(entry["title"].as_str()).unwrap_or_default();
        is_name.then(|| Self {
            name: name.to_owned(),
            description: description.to_owned(),
            schema: schema.clone(),
        })
    }

    /// The tool as chat templates take it.
    #[must_use]
    pub fn object(&self) -> Value {
        let function =
            json!({ "name": self.name, "description": self.description, "parameters": self.schema });
        json!({ "type": "function", "function": function })
    }

    /// What is wrong with arguments; `None` if nothing. Only the first level is checked here: which are
    /// required, which are known, and their types. The server checks the rest.
    #[must_use]
    pub fn misfit(&self, arguments: &Map<String, Value>) -> Option<String> {
        let required = self.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(missing) = required.into_iter().find(|name| !arguments.contains_key(*name)) {
            return Some(format!("the argument {missing:?} is missing"));
        }
        let none = Map::new();
        let known = self.schema["properties"].as_object().unwrap_or(&none);
        for (name, value) in arguments {
            let Some(property) = known.get(name) else {
                if self.schema["additionalProperties"] == json!(false) {
                    return Some(format!("there is no argument {name:?}"));
                }
                continue;
            };
            let types: Vec<&str> = match &property["type"] {
                Value::String(one) => vec![one],
                Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
                _ => continue,
            };
            if !types.iter().any(|of| is_of(value, of)) {
                return Some(format!("the argument {name:?} must be of type {}", types.join(" or ")));
            }
        }
        None
    }
}

fn is_of(value: &Value, of: &str) -> bool {
    match of {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        // The server knows what it means.
        _ => true,
    }
}

impl ToolResult {
    /// An error, in words for the policy.
    #[must_use]
    pub fn error(reason: impl std::fmt::Display) -> Self {
        Self { text: format!("Error: {reason}"), is_error: true }
    }

    /// Reads the result of `tools/call`: its texts, one after another. What is no text is named.
    pub(super) fn read(result: &Value) -> Self {
        let is_error = result["isError"] == json!(true);
        let mut text = String::new();
        for block in result["content"].as_array().into_iter().flatten() {
            let part = match block["type"].as_str() {
                Some("text") => block["text"].as_str().unwrap_or_default().to_owned(),
                Some("resource") => match block["resource"]["text"].as_str() {
                    Some(text) => text.to_owned(),
                    None => left_out("resource", &block["resource"]["mimeType"]),
                },
                Some("resource_link") => block["uri"].as_str().unwrap_or_default().to_owned(),
                kind => left_out(kind.unwrap_or("part"), &block["mimeType"]),
            };
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(cut(&part, MAX_TEXT));
            if text.len() > MAX_TEXT {
                break;
            }
        }
        if text.is_empty() && result["structuredContent"].is_object() {
            text = result["structuredContent"].to_string();
        }
        text.truncate(cut(&text, MAX_TEXT).len());
        if is_error && !text.starts_with("Error") {
            text.insert_str(0, "Error: ");
        }
        Self { text, is_error }
    }
}

fn left_out(kind: &str, of: &Value) -> String {
    format!("[{} left out: {}]", cut(kind, 32), cut(of.as_str().unwrap_or("no text"), 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(schema: &Value) -> Tool {
        Tool::read(&json!({ "name": "add", "inputSchema": schema })).unwrap()
    }

    #[test]
    fn arguments_are_checked_against_the_schemas_first_level() {
        let schema = json!({
            "type": "object", "required": ["a"], "additionalProperties": false,
            "properties": { "a": { "type": "integer" }, "b": { "type": ["string", "null"] }, "c": { "anyOf": [] } },
        });
        let misfit = |arguments: Value| tool(&schema).misfit(arguments.as_object().unwrap());
        for fine in
            [json!({ "a": 1 }), json!({ "a": 2.0, "b": null }), json!({ "a": -1, "b": "x", "c": [1] })]
        {
            assert_eq!(misfit(fine.clone()), None, "{fine}");
        }
        for (wrong, words) in [
            (json!({}), "\"a\" is missing"),
            (json!({ "a": "1" }), "\"a\" must be of type integer"),
            (json!({ "a": 1.5 }), "\"a\" must be of type integer"),
            (json!({ "a": 1, "b": 2 }), "\"b\" must be of type string or null"),
            (json!({ "a": 1, "../d": 2 }), "there is no argument \"../d\""),
        ] {
            let said = misfit(wrong.clone());
            assert!(said.as_ref().is_some_and(|said| said.contains(words)), "{wrong}: {said:?}");
        }
        assert_eq!(tool(&json!({})).misfit(json!({ "any": 1 }).as_object().unwrap()), None);
        let no_tools = [
            json!({}),
            json!({ "name": "a" }),
            json!({ "name": "", "inputSchema": {} }),
            json!({ "name": "a\nb", "inputSchema": {} }),
        ];
        assert!(no_tools.iter().all(|entry| Tool::read(entry).is_none()));
    }

    #[test]
    fn a_result_is_its_texts() {
        let read = |result: Value| {
            let ToolResult { text, is_error } = ToolResult::read(&result);
            (text, is_error)
        };
        let text = |text: &str| json!({ "type": "text", "text": text });
        let image = json!({ "type": "image", "data": "aGk=", "mimeType": "image/png" });
        let file = json!({ "type": "resource", "resource": { "uri": "f:x", "text": "file" } });
        let all = json!({ "content": [text("a"), image, file, { "type": "resource_link", "uri": "f:y" }] });
        assert_eq!(read(all), ("a\n[image left out: image/png]\nfile\nf:y".to_owned(), false));
        assert_eq!(read(json!({ "content": [text("no")], "isError": true })), ("Error: no".to_owned(), true));
        let structured = json!({ "content": [], "structuredContent": { "x": 1 } });
        assert_eq!(read(structured), ("{\"x\":1}".to_owned(), false));
        assert_eq!(read(json!(null)), (String::new(), false));
        let long = "é".repeat(MAX_TEXT);
        assert_eq!(read(json!({ "content": [text(&long), text(&long)] })).0.len(), MAX_TEXT);
    }
}
