//! What a field of a run file takes, by the run file's JSON Schema. Serde reports types of Rust, and of a
//! table with a `kind` or a `name` it reports the table alone.

use std::fmt::{self, Write as _};

use schemars::schema_for;
use serde_json::Value;

use crate::submit::RunSpec;

/// A step on the way to a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// A field of a table.
    Field(String),
    /// An item of a list, from 0.
    Item(usize),
}

/// The way to a field, as the run file spells it: `rewards[0].weight`.
pub(super) struct Place<'a>(pub(super) &'a [Step]);

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if at == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A value of a type or name that its field does not take.
pub(super) struct Misfit {
    /// The way to it.
    pub(super) path: Vec<Step>,
    /// What to write instead.
    pub(super) remedy: String,
}

/// The schema of run files.
pub(super) struct Expected {
    schema: Value,
}

impl Expected {
    /// Makes the schema.
    pub(super) fn new() -> Self {
        Self { schema: schema_for!(RunSpec).to_value() }
    }

    /// What the field at `path` of the file takes, for one that is missing.
    pub(super) fn missing(&self, path: &[Step], file: &Value) -> Option<String> {
        let node = self.node(path, file)?;
        Some(self.remedy(node, last(path), &Value::Null))
    }

    /// The first value at or below `path` of the file that its field does not take.
    pub(super) fn misfit(&self, path: &[Step], file: &Value) -> Option<Misfit> {
        let (node, value) = (self.node(path, file)?, value_at(path, file)?);
        let mut path = path.to_vec();
        let remedy = self.below(node, value, &mut path)?;
        Some(Misfit { path, remedy })
    }

    fn node<'a>(&'a self, path: &[Step], file: &Value) -> Option<&'a Value> {
        let (mut node, mut value) = (&self.schema, Some(file));
        for step in path {
            let table = self.variant(node, value);
            (node, value) = match step {
                Step::Field(name) => (table["properties"].get(name)?, value.and_then(|v| v.get(name))),
                Step::Item(index) => (table.get("items")?, value.and_then(|v| v.get(index))),
            };
        }
        Some(node)
    }

    /// Follows references, and leaves out that a value may be absent.
    fn resolved<'a>(&'a self, node: &'a Value) -> &'a Value {
        let name = node["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        let named = name.and_then(|name| self.schema["$defs"].get(name));
        let present = node["anyOf"].as_array().and_then(|of| of.iter().find(|one| one["type"] != "null"));
        named.or(present).map_or(node, |next| self.resolved(next))
    }

    /// Of a table that is one of several, the one whose `kind` or `name` the value has.
    fn variant<'a>(&'a self, node: &'a Value, value: Option<&Value>) -> &'a Value {
        let node = self.resolved(node);
        let chosen = tagged(node).and_then(|(tag, tables)| {
            let name = value?.get(tag)?;
            tables.iter().find(|table| table["properties"][tag]["const"] == *name)
        });
        chosen.unwrap_or(node)
    }

    /// Extends `path` to the first value that does not fit, and returns the remedy.
    fn below(&self, node: &Value, value: &Value, path: &mut Vec<Step>) -> Option<String> {
        if value.is_null() {
            // An optional field may be null.
            return None;
        }
        let table = self.variant(node, Some(value));
        if let (Some((tag, tables)), Some(given)) = (tagged(table), value.as_object()) {
            // The tag has no known name, or it is missing, which serde reports.
            let (given, field) = (given.get(tag)?, Step::Field(tag.to_owned()));
            path.push(field);
            return Some(choose(&names(tables, tag), given));
        }
        if let ("object", Some(given)) = (kind(table), value.as_object()) {
            let any = table.get("additionalProperties").filter(|node| node.is_object());
            return given.iter().find_map(|(name, value)| {
                let node = table["properties"].get(name).or(any)?;
                self.step_below(node, value, Step::Field(name.clone()), path)
            });
        }
        if let (Some(items), Some(given)) = (table.get("items"), value.as_array()) {
            let mut given = given.iter().enumerate();
            return given.find_map(|(index, value)| self.step_below(items, value, Step::Item(index), path));
        }
        (!fits(table, value)).then(|| self.remedy(node, last(path), value))
    }

    fn step_below(&self, node: &Value, value: &Value, step: Step, path: &mut Vec<Step>) -> Option<String> {
        path.push(step);
        let found = self.below(node, value, path);
        if found.is_none() {
            path.pop();
        }
        found
    }

    /// What to write for the field `name` instead of `value`.
    fn remedy(&self, node: &Value, name: &str, value: &Value) -> String {
        let node = self.resolved(node);
        if let Some((tag, tables)) = tagged(node) {
            let names = names(tables, tag);
            let first = names.first().map_or("", String::as_str);
            return format!(
                "give a table with a {tag}, {name} = {{ {tag} = {first}, … }}; {tag} is {}",
                or(&names)
            );
        }
        if let Some(names) = constants(node) {
            return choose(&names, value);
        }
        let what = match (kind(node), most(node)) {
            ("integer", Some(most)) => format!("give a whole number from 0 to {most}"),
            ("integer", None) => "give a whole number from 0".to_owned(),
            ("number", _) => "give a number".to_owned(),
            ("boolean", _) => "give true or false".to_owned(),
            ("string", _) => "give a text in quotes".to_owned(),
            ("array", _) => "give a list in brackets".to_owned(),
            _ => return self.table(node, name, value),
        };
        let bare = value.as_str().filter(|text| fits(node, &text.parse().unwrap_or_default()));
        bare.map_or_else(|| what.clone(), |bare| format!("{what}, without quotes: {name} = {bare}"))
    }

    /// `give a table of named fields: kl = { coefficient = 0.001 }`, with the value where its one field takes it.
    fn table(&self, node: &Value, name: &str, value: &Value) -> String {
        let mut example = String::new();
        let required = node["required"].as_array().map_or(&[][..], Vec::as_slice);
        for (at, field) in required.iter().filter_map(Value::as_str).enumerate() {
            let node = self.resolved(&node["properties"][field]);
            let takes = required.len() == 1 && !value.is_null() && fits(node, value);
            let sample = match kind(node) {
                _ if takes => value.to_string(),
                "integer" | "number" => "1".to_owned(),
                _ => "…".to_owned(),
            };
            let comma = if at == 0 { "" } else { ", " };
            let _ = write!(example, "{comma}{field} = {sample}");
        }
        match example.as_str() {
            "" => "give a table of named fields".to_owned(),
            example => format!("give a table of named fields: {name} = {{ {example} }}"),
        }
    }
}

/// The value at `path` of the file.
pub(super) fn value_at<'a>(path: &[Step], file: &'a Value) -> Option<&'a Value> {
    path.iter().try_fold(file, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Item(index) => value.get(index),
    })
}

/// The last field's name on a path.
fn last(path: &[Step]) -> &str {
    let named = path.iter().rev().find_map(|step| match step {
        Step::Field(name) => Some(name.as_str()),
        Step::Item(_) => None,
    });
    named.unwrap_or(".")
}

/// The field that tells several tables apart, and the tables.
fn tagged(node: &Value) -> Option<(&str, &[Value])> {
    let tables = node["oneOf"].as_array()?;
    let mut fields = tables.first()?["properties"].as_object()?.iter();
    let (tag, _) = fields.find(|(_, field)| field.get("const").is_some())?;
    Some((tag, tables))
}

/// The tables' names, in quotes.
fn names(tables: &[Value], tag: &str) -> Vec<String> {
    tables.iter().map(|table| table["properties"][tag]["const"].to_string()).collect()
}

/// The words that a field takes, in quotes; `None` if it takes others than words.
fn constants(node: &Value) -> Option<Vec<String>> {
    let words = node["oneOf"].as_array().or_else(|| node["enum"].as_array())?.iter();
    let words = words.map(|word| word.get("const").unwrap_or(word));
    words.map(|word| word.is_string().then(|| word.to_string())).collect()
}

/// The largest number that a field's type holds, where people may pass it.
fn most(node: &Value) -> Option<u64> {
    (node["format"] == "uint32").then_some(u64::from(u32::MAX))
}

/// The type's name in the schema.
fn kind(node: &Value) -> &str {
    let kinds = node["type"].as_array().map_or(std::slice::from_ref(&node["type"]), Vec::as_slice);
    kinds.iter().filter_map(Value::as_str).find(|kind| *kind != "null").unwrap_or("")
}

/// Whether a value that is neither a table nor a list of the field's own is of its type.
fn fits(node: &Value, value: &Value) -> bool {
    if let Some(words) = constants(node) {
        return value.is_string() && words.contains(&value.to_string());
    }
    match kind(node) {
        "integer" => value.as_u64().is_some_and(|value| most(node).is_none_or(|most| value <= most)),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => tagged(node).is_none(),
    }
}

/// The remedy where one of a few words is expected.
fn choose(names: &[String], given: &Value) -> String {
    let near = given
        .as_str()
        .and_then(|given| super::nearest::nearest(given, names.iter().map(|name| name.trim_matches('"'))));
    let near = near.map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
    format!("choose {}{near}", or(names))
}

/// `a, b or c`.
fn or(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [many @ .., last] => format!("{} or {last}", many.join(", ")),
    }
}
