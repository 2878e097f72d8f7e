//! Reading a run file.

use serde::de::DeserializeOwned;

use super::RunSpec;
use super::validate::Refusal;
use crate::limits::MAX_REQUEST_BYTES;

mod nearest;

/// Why a run file is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RunFileError {
    /// Too long to be one.
    #[error("run file has bytes={0}, more than {MAX_REQUEST_BYTES}")]
    TooLong(usize),
    /// Not TOML or JSON, or of another shape.
    #[error("run file field={field}: {reason}")]
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

/// Reads and checks a run file in TOML.
///
/// # Errors
/// Says field, value and remedy of everything that is wrong with it.
pub fn from_toml(text: &str) -> Result<RunSpec, RunFileError> {
    bounded(text.len())?;
    let shape = |e: &toml::de::Error| RunFileError::Shape { field: ".".into(), reason: e.to_string() };
    checked(toml::Deserializer::parse(text).map_err(|e| shape(&e))?)
}

/// Reads and checks a run file in JSON.
///
/// # Errors
/// Says field, value and remedy of everything that is wrong with it.
pub fn from_json(bytes: &[u8]) -> Result<RunSpec, RunFileError> {
    bounded(bytes.len())?;
    // A plain value first: it refuses what follows the document.
    let value: serde_json::Value = serde_json::from_slice(bytes)
        .map_err(|e| RunFileError::Shape { field: ".".into(), reason: e.to_string() })?;
    checked(value)
}

fn bounded(bytes: usize) -> Result<(), RunFileError> {
    if bytes > MAX_REQUEST_BYTES { Err(RunFileError::TooLong(bytes)) } else { Ok(()) }
}

fn checked<'de, D: serde::Deserializer<'de>>(document: D) -> Result<RunSpec, RunFileError>
where
    RunSpec: DeserializeOwned,
{
    let spec: RunSpec = serde_path_to_error::deserialize(document).map_err(|e| RunFileError::Shape {
        field: e.path().to_string(),
        reason: meant(&e.inner().to_string()),
    })?;
    let refusals = spec.refusals();
    if refusals.is_empty() { Ok(spec) } else { Err(RunFileError::Refused(refusals)) }
}

/// What serde says of a name that it does not know, with the known one that was probably meant.
pub(crate) fn meant(reason: &str) -> String {
    let says = |line: &&str| line.contains("unknown field `") || line.contains("unknown variant `");
    let near = reason.lines().find(says).and_then(|line| {
        let mut names = line.split('`').skip(1).step_by(2);
        let name = nearest::nearest(names.next()?, names)?;
        Some(reason.replacen(line, &format!("{line}; did you mean `{name}`?"), 1))
    });
    near.unwrap_or_else(|| reason.to_owned())
}
