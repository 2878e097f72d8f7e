//! Finds all mistakes of a run file at once. Reading ends at the first value of a wrong shape, so
//! that value is removed and the rest is read again, until nothing is wrong or nothing more can be
//! removed.

use serde_json::Value;
use serde_path_to_error::{Error, Segment};

use super::{RunFileError, meant};
use crate::limits::MAX_SHOWN_BYTES;
use crate::submit::{Refusal, RunSpec};
use crate::text::shown;

/// Values of a wrong shape that are removed from one file, at most.
const MAX_TAKEN_OUT: usize = 32;

/// The mistakes of the file `written`, whose reading ended with `first`. A single mistake of shape
/// is reported as such.
pub(super) fn all<E: std::fmt::Display>(first: &Error<E>, written: Option<&Value>) -> RunFileError {
    let field = shown(&first.path().to_string(), MAX_SHOWN_BYTES);
    let alone = RunFileError::Shape { field, reason: meant(&first.inner().to_string()) };
    let refusals = written.map(|written| gather(written.clone())).unwrap_or_default();
    if refusals.len() > 1 { RunFileError::Refused(refusals) } else { alone }
}

fn gather(mut file: Value) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    let mut taken_out: Vec<Vec<String>> = Vec::new();
    while taken_out.len() < MAX_TAKEN_OUT {
        let error = match serde_path_to_error::deserialize::<_, RunSpec>(&file) {
            Ok(spec) => {
                // A removed value now has its default, which is no evidence about the file.
                let names: Vec<String> = taken_out.iter().map(|path| path.join(".")).collect();
                refusals
                    .extend(spec.refusals().into_iter().filter(|refusal| !names.contains(&refusal.field)));
                return refusals;
            }
            Err(error) => error,
        };
        let reason = error.inner().to_string();
        let Some(path) = keys(&error) else {
            refusals.push(refusal(&error.path().to_string(), None, &reason));
            return refusals;
        };
        if let Some(missing) = quoted(&reason, "missing field `") {
            let missing = [path.as_slice(), &[missing.to_owned()]].concat();
            let name = missing.join(".");
            if !taken_out.contains(&missing) {
                refusals.push(refusal(&name, None, "this field is missing"));
            }
            // With a placeholder for a value that no other field depends on, the rest can still be
            // checked.
            let stand_in = match name.as_str() {
                "name" => Value::from("unnamed"),
                "steps" => Value::from(1),
                _ => return refusals,
            };
            file[&name] = stand_in;
            taken_out.push(missing);
            continue;
        }
        // The path of an unknown field ends at its table, or at the field.
        let unknown = quoted(&reason, "unknown field `").map(str::to_owned);
        let inside = unknown.filter(|name| path.last() != Some(name));
        let path = path.into_iter().chain(inside).collect::<Vec<_>>();
        let value = take_out(&mut file, &path);
        refusals.push(refusal(&path.join("."), value.as_ref(), &reason));
        if value.is_none() {
            return refusals;
        }
        taken_out.push(path);
    }
    refusals
}

fn refusal(field: &str, value: Option<&Value>, reason: &str) -> Refusal {
    let value = value.map_or_else(|| "none".to_owned(), ToString::to_string);
    Refusal {
        field: shown(field, MAX_SHOWN_BYTES),
        value: shown(&value, MAX_SHOWN_BYTES),
        remedy: meant(reason),
    }
}

/// The names on the path of an error; `None` if it leads through a list, whose indices would
/// change.
fn keys<E>(error: &Error<E>) -> Option<Vec<String>> {
    let key = |segment: &Segment| match segment {
        Segment::Map { key } => Some(key.clone()),
        Segment::Seq { .. } | Segment::Enum { .. } | Segment::Unknown => None,
    };
    error.path().iter().map(key).collect()
}

/// The name in backticks after `start`.
fn quoted<'a>(reason: &'a str, start: &str) -> Option<&'a str> {
    reason.split_once(start)?.1.split('`').next()
}

fn take_out(file: &mut Value, path: &[String]) -> Option<Value> {
    let (last, tables) = path.split_last()?;
    let mut table = file;
    for name in tables {
        table = table.get_mut(name)?;
    }
    table.as_object_mut()?.remove(last)
}
