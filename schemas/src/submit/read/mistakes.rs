//! Finds all mistakes of a run file at once. Reading ends at the first value of a wrong shape, so
//! that value is removed and the rest is read again, until nothing is wrong or nothing more can be
//! removed.

use serde_json::Value;
use serde_path_to_error::{Error, Segment};

use super::expected::{Expected, Place, Step, value_at};
use super::{RunFileError, meant, refusals_of};
use crate::limits::MAX_SHOWN_BYTES;
use crate::submit::{Refusal, RunSpec};
use crate::text::shown;

/// Values of a wrong shape that are removed from one file, at most.
const MAX_TAKEN_OUT: usize = 32;

/// The mistakes of the file `written`, whose reading ended with `first`. A single mistake of shape
/// is reported as such.
pub(super) fn all<E: std::fmt::Display>(first: &Error<E>, written: Option<&Value>) -> RunFileError {
    let reason = meant(&first.inner().to_string());
    let Some(written) = written else {
        return RunFileError::Shape { field: shown(&first.path().to_string(), MAX_SHOWN_BYTES), reason };
    };
    let expected = Expected::new();
    let refusals = gather(written.clone(), &expected);
    if refusals.len() > 1 {
        return RunFileError::Refused(refusals);
    }
    let alone = Mistake::find(first, written, &expected);
    let reason = match alone.refusal(alone.remedy.clone()) {
        _ if alone.remedy.is_empty() => reason,
        refusal => format!("{}\n{refusal}", reason.trim_end()),
    };
    RunFileError::Shape { field: shown(&alone.field(), MAX_SHOWN_BYTES), reason }
}

/// A value of a wrong shape.
struct Mistake {
    /// The way to it, `None` if serde does not know it all.
    path: Option<Vec<Step>>,
    /// The way to it in serde's spelling.
    known: String,
    /// The value; `None` if it is missing.
    value: Option<Value>,
    /// Whether it is a field that is missing.
    is_missing: bool,
    /// What to write instead; empty where serde's message says it.
    remedy: String,
}

impl Mistake {
    fn find<E: std::fmt::Display>(error: &Error<E>, file: &Value, expected: &Expected) -> Self {
        let (reason, known) = (error.inner().to_string(), error.path().to_string());
        let Some(mut path) = steps(error) else {
            return Self { path: None, known, value: None, is_missing: false, remedy: String::new() };
        };
        let is_missing = quoted(&reason, "missing field `").is_some();
        let mut remedy = String::new();
        if let Some(missing) = quoted(&reason, "missing field `") {
            path.push(Step::Field(missing.to_owned()));
            remedy = expected.missing(&path, file).unwrap_or_default();
            remedy = format!("this field is missing{}{remedy}", if remedy.is_empty() { "" } else { "; " });
        } else if let Some(unknown) = quoted(&reason, "unknown field `") {
            // The path of an unknown field ends at its table, or at the field.
            let field = Step::Field(unknown.to_owned());
            path.extend((path.last() != Some(&field)).then_some(field));
        } else if let Some(misfit) = expected.misfit(&path, file) {
            (path, remedy) = (misfit.path, misfit.remedy);
        }
        let value = value_at(&path, file).cloned();
        Self { path: Some(path), known, value, is_missing, remedy }
    }

    fn field(&self) -> String {
        let path = self.path.as_ref().filter(|path| !path.is_empty());
        path.map_or_else(|| self.known.clone(), |path| Place(path).to_string())
    }

    fn refusal(&self, remedy: String) -> Refusal {
        let value = self.value.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string);
        Refusal {
            field: shown(&self.field(), MAX_SHOWN_BYTES),
            value: shown(&value, MAX_SHOWN_BYTES),
            remedy,
        }
    }

    /// Serde's message and the remedy.
    fn told(&self, reason: &str) -> Refusal {
        let remedy = match (self.is_missing, self.remedy.as_str()) {
            (true, remedy) => remedy.to_owned(),
            (false, "") => meant(reason),
            (false, remedy) => format!("{}; {remedy}", meant(reason)),
        };
        self.refusal(remedy)
    }
}

fn gather(mut file: Value, expected: &Expected) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut taken_out: Vec<String> = Vec::new();
    while taken_out.len() < MAX_TAKEN_OUT {
        let error = match serde_path_to_error::deserialize::<_, RunSpec>(&file) {
            Ok(spec) => {
                // A removed value now has its default, which is no evidence about the file.
                let sound = |refusal: &Refusal| !taken_out.contains(&refusal.field);
                refusals.extend(refusals_of(&spec, Some(&file)).into_iter().filter(sound));
                return refusals;
            }
            Err(error) => error,
        };
        let mistake = Mistake::find(&error, &file, expected);
        let field = mistake.field();
        if !(mistake.is_missing && taken_out.contains(&field)) {
            refusals.push(mistake.told(&error.inner().to_string()));
        }
        let goes_on = match &mistake.path {
            None => false,
            Some(_) if mistake.is_missing => stand_in(&mut file, &field),
            Some(path) => take_out(&mut file, path),
        };
        if !goes_on {
            return refusals;
        }
        taken_out.push(field);
    }
    refusals
}

/// Sets a placeholder for a missing value that no other field depends on, so that the rest can still
/// be checked. Returns whether it is such a value.
fn stand_in(file: &mut Value, field: &str) -> bool {
    file[field] = match field {
        "name" => Value::from("unnamed"),
        "steps" => Value::from(1),
        _ => return false,
    };
    true
}

/// The way to the value at which reading ended; `None` if serde does not know it all.
fn steps<E>(error: &Error<E>) -> Option<Vec<Step>> {
    let step = |segment: &Segment| match segment {
        Segment::Map { key } => Some(Step::Field(key.clone())),
        Segment::Seq { index } => Some(Step::Item(*index)),
        Segment::Enum { .. } | Segment::Unknown => None,
    };
    error.path().iter().map(step).collect()
}

/// The name in backticks after `start`.
fn quoted<'a>(reason: &'a str, start: &str) -> Option<&'a str> {
    reason.split_once(start)?.1.split('`').next()
}

/// Removes a field of a table. Returns whether it did: what is left of a list would be numbered
/// otherwise.
fn take_out(file: &mut Value, path: &[Step]) -> bool {
    let Some((Step::Field(last), tables)) = path.split_last() else { return false };
    let table = tables.iter().try_fold(file, |value, step| match step {
        Step::Field(name) => value.get_mut(name),
        Step::Item(index) => value.get_mut(index),
    });
    table.and_then(Value::as_object_mut).is_some_and(|table| table.remove(last).is_some())
}
