//! Reading a run file.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::validate::{Checks, Refusal, unused};
use super::{ModelSpec, RunSpec};
use crate::limits::{MAX_REQUEST_BYTES, MAX_SHOWN_BYTES};
use crate::text::shown;

mod expected;
mod mistakes;
mod nearest;
mod unique;

/// Bytes of a message about a file of another shape, which quotes the file.
const MAX_SHAPE_BYTES: usize = 4_096;
/// The byte order mark, which editors on Windows write at the start of a file.
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Why a run file is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunFileError {
    /// Too long to be one.
    #[error("run file has bytes={0}, more than {MAX_REQUEST_BYTES}")]
    TooLong(usize),
    /// Not TOML or JSON, or of another shape.
    #[error("run file{}: {reason}", of_field(.field))]
    Shape {
        /// Path to the field, `.` for the whole.
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Values that cannot work.
    #[error("run file is refused:{}", .0.iter().map(|r| format!("\n  {r}")).collect::<String>())]
    Refused(Vec<Refusal>),
}

/// The field of a message. The whole file is none, nor is `?`: there the text cannot be read.
fn of_field(field: &str) -> String {
    let field = field.strip_suffix(".?").unwrap_or(field);
    if ["", ".", "?"].contains(&field) { String::new() } else { format!(" field={field}") }
}

/// Reads and checks a run file in TOML.
///
/// # Errors
/// The error has field, value and remedy of every mistake.
pub fn from_toml(text: &str) -> Result<RunSpec, RunFileError> {
    bounded(text.len())?;
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let shape = |e: &toml::de::Error| RunFileError::Shape {
        field: ".".into(),
        reason: shown(&e.to_string(), MAX_SHAPE_BYTES),
    };
    let written: Option<Value> = toml::from_str(text).ok();
    checked(toml::Deserializer::parse(text).map_err(|e| shape(&e))?, written.as_ref())
}

/// Reads and checks a run file in JSON.
///
/// # Errors
/// The error has field, value and remedy of every mistake.
pub fn from_json(bytes: &[u8]) -> Result<RunSpec, RunFileError> {
    bounded(bytes.len())?;
    // First as a plain value, which refuses trailing content and repeated fields.
    let value = unique::read(bytes.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(bytes))?;
    checked(&value, Some(&value))
}

fn bounded(bytes: usize) -> Result<(), RunFileError> {
    if bytes > MAX_REQUEST_BYTES { Err(RunFileError::TooLong(bytes)) } else { Ok(()) }
}

fn checked<'de, D: serde::Deserializer<'de>>(
    document: D,
    written: Option<&Value>,
) -> Result<RunSpec, RunFileError>
where
    RunSpec: DeserializeOwned,
{
    let spec: RunSpec = match serde_path_to_error::deserialize(document) {
        Ok(spec) => spec,
        Err(first) => return Err(mistakes::all(&first, written)),
    };
    let read = serde_json::to_value(&spec).expect("a run file holds only what JSON can express");
    if let Some(field) = written.and_then(|written| list_for_table("", written, &read)) {
        let reason = "this is a list, and a table of named fields is expected".to_owned();
        return Err(RunFileError::Shape { field, reason });
    }
    let refusals = refusals_of(&spec, written);
    if refusals.is_empty() { Ok(spec) } else { Err(RunFileError::Refused(refusals)) }
}

/// What cannot work, and what is refused of a file that a person writes: a setting that would change
/// nothing, and a default that would surprise.
fn refusals_of(spec: &RunSpec, written: Option<&Value>) -> Vec<Refusal> {
    let mut checks = Checks(spec.refusals());
    unused::check(spec, &mut checks);
    let is_given = |written: &Value| written.pointer("/rollout/max_new_tokens").is_some();
    let is_of_each = !spec.domains.is_empty() && spec.domains.iter().all(|d| d.max_new_tokens.is_some());
    checks.require(
        !matches!(spec.model, ModelSpec::HuggingFace { .. }) || is_of_each || written.is_none_or(is_given),
        "rollout.max_new_tokens",
        "none",
        "each turn of a model with a tokenizer would be one token; choose the most tokens of a turn, 256 for example",
    );
    checks.0
}

/// Finds a list where a table is expected, because serde also reads a struct's fields by their
/// order.
fn list_for_table(path: &str, written: &Value, read: &Value) -> Option<String> {
    match (written, read) {
        (Value::Array(_), Value::Object(_)) => Some(path.to_owned()),
        (Value::Array(written), Value::Array(read)) => {
            (0..).zip(written.iter().zip(read)).find_map(|(i, (written, read)): (usize, _)| {
                list_for_table(&format!("{path}[{i}]"), written, read)
            })
        }
        (Value::Object(written), Value::Object(read)) => written.iter().find_map(|(name, written)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            match (read.get(name), written) {
                (Some(read), _) => list_for_table(&path, written, read),
                (None, Value::Array(items)) if !items.is_empty() => Some(path),
                (None, _) => None,
            }
        }),
        _ => None,
    }
}

/// Serde's message about an unknown name, with the known name that was probably meant.
pub(crate) fn meant(reason: &str) -> String {
    let is_unknown = |line: &&str| line.contains("unknown field `") || line.contains("unknown variant `");
    let near = reason.lines().find(is_unknown).and_then(|line| {
        let unknown = line.split('`').nth(1)?;
        if unknown.len() > MAX_SHOWN_BYTES {
            return Some(reason.replacen(unknown, &shown(unknown, MAX_SHOWN_BYTES), 1));
        }
        let mut names = line.split('`').skip(1).step_by(2);
        let name = nearest::nearest(names.next()?, names)?;
        Some(reason.replacen(line, &format!("{line}; did you mean `{name}`?"), 1))
    });
    shown(&near.unwrap_or_else(|| reason.to_owned()), MAX_SHAPE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_the_whole_file_names_no_field() {
        for refused in [from_toml("name = "), from_json(b"{"), from_json(b"{} x"), from_json(b"[]")] {
            let said = refused.unwrap_err().to_string();
            assert!(said.starts_with("run file: ") && !said.contains("field="), "{said}");
        }
        let said = from_json(b"{\"rollout\": {").unwrap_err().to_string();
        assert!(said.starts_with("run file field=rollout: "), "{said}");
    }
}
