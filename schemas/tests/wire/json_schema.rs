//! The JSON Schemas in `schemas/json` are those of the types, and describe every field. `UPDATE=1
//! cargo test --release -p millrace-schemas` rewrites them.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use millrace_schemas::{RunSpec, schema};
use serde_json::Value;

use crate::samples;

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("json")
}

fn text(schema: &schemars::Schema) -> String {
    serde_json::to_string_pretty(schema).expect("a schema is JSON") + "\n"
}

#[test]
fn committed_schemas_are_those_of_the_types() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut expected = BTreeSet::new();
    for (name, schema) in schema::all() {
        let path = folder().join(format!("{name}.json"));
        expected.insert(path.clone());
        if update {
            fs::write(&path, text(&schema)).expect("the file can be written");
        }
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == text(&schema),
            "{} differs from the types; UPDATE=1 rewrites it: check the difference, old messages must still be read",
            path.display()
        );
    }
    let there: BTreeSet<PathBuf> = fs::read_dir(folder())
        .expect("the folder is there")
        .map(|entry| entry.expect("readable").path())
        .collect();
    assert_eq!(there, expected, "files that belong to no document");
}

/// Calls `visit` with the path, the name and the schema of every property, and whether it is
/// required.
fn properties(path: &str, schema: &Value, visit: &mut impl FnMut(&str, &Value, bool)) {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        visit(&format!("{path}.{name}"), property, required.contains(&name.as_str()));
    }
    for (key, value) in schema.as_object().into_iter().flatten() {
        if ["$defs", "oneOf", "anyOf"].contains(&key.as_str()) {
            let inner: Vec<(String, &Value)> = match value {
                Value::Array(list) => list.iter().map(|v| (path.to_owned(), v)).collect(),
                Value::Object(map) => map.iter().map(|(k, v)| (format!("{path}/{k}"), v)).collect(),
                _ => Vec::new(),
            };
            for (path, value) in inner {
                properties(&path, value, visit);
            }
        }
    }
}

/// The tag that tells the variants of an enum apart, and the one field of a variant, speak for
/// themselves.
fn is_tag(property: &Value) -> bool {
    property.get("const").is_some() || property.get("$ref").is_some() && property.get("description").is_none()
}

#[test]
fn every_field_of_every_document_is_described() {
    let mut silent = Vec::new();
    for (name, schema) in schema::all() {
        properties(name, schema.as_value(), &mut |path, property, _| {
            // A variant's own table carries the description one level up.
            let is_variant = property["type"] == "object" && property.get("description").is_none();
            if property.get("description").is_none() && !is_tag(property) && !is_variant {
                silent.push(path.to_owned());
            }
        });
    }
    assert!(silent.is_empty(), "no description: {silent:#?}");
}

#[test]
fn every_optional_field_of_the_run_file_says_its_default() {
    let (_, schema) =
        schema::all().into_iter().find(|(name, _)| *name == "run").expect("the run file has a schema");
    let mut wrong = Vec::new();
    let mut seen = 0;
    properties("run", schema.as_value(), &mut |path, property, required| {
        if required || property.get("const").is_some() {
            return;
        }
        seen += 1;
        // A whole table's default is that of its fields.
        let Some(default) = property.get("default") else {
            return wrong.push(format!("{path}: the schema has none"));
        };
        if default.is_object() {
            return;
        }
        let description = property["description"].as_str().unwrap_or_default();
        if !says(description, default) {
            wrong.push(format!("{path}: {default} is not in {description:?}"));
        }
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 30, "only {seen} optional fields were looked at");
}

/// Whether `Default …` in a description gives `default`.
fn says(description: &str, default: &Value) -> bool {
    let Some((_, words)) = description.split_once("Default") else { return false };
    let words: Vec<&str> = words.split([' ', ';', ',', '`']).map(|word| word.trim_end_matches('.')).collect();
    match default {
        Value::Number(number) => words.iter().any(|word| word.parse::<f64>().ok() == number.as_f64()),
        Value::String(name) => words.contains(&name.as_str()),
        // The list of rewards is described in words.
        _ => !words.is_empty(),
    }
}

#[test]
fn schemas_name_the_fields_that_samples_have() {
    let schema =
        schema::all().into_iter().find(|(name, _)| *name == "run").expect("the run file has a schema").1;
    let one = samples::run_spec();
    let environment = one.environment.clone().expect("it has one");
    let domain = serde_json::json!({ "name": "part", "share": 1.0, "environment": environment });
    let several = RunSpec {
        environment: None,
        domains: vec![serde_json::from_value(domain).expect("a domain")],
        ..one.clone()
    };
    let samples = [one, several].map(|spec| serde_json::to_value(spec).expect("a run file is JSON"));
    let fields: BTreeSet<&String> =
        samples.iter().flat_map(|sample| sample.as_object().expect("a table").keys()).collect();
    let described: BTreeSet<&String> =
        schema.as_value()["properties"].as_object().expect("it has properties").keys().collect();
    assert_eq!(fields, described);
}
