//! Settings of reward rules: `rewards[i].settings`, a table of its own for each rule, as strict as
//! the rest of the file.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::Stage;
use crate::env_step::Settings;
use crate::limits::{MAX_SCORING_MS, attempt_ms};
use crate::submit::meant;

/// A setting that cannot work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongSetting {
    /// Its path within the settings; empty for the whole.
    pub field: String,
    /// Its value.
    pub value: String,
    /// What is wrong and what to write instead.
    pub remedy: String,
}

impl WrongSetting {
    pub(super) fn new(field: &str, value: String, remedy: &str) -> Self {
        Self { field: field.to_owned(), value, remedy: remedy.to_owned() }
    }
}

/// Settings of one rule.
pub trait RuleSettings: DeserializeOwned {
    /// What of it cannot work; empty if all can.
    fn wrong(&self) -> Vec<WrongSetting>;
}

/// Reads and checks a rule's settings.
///
/// # Errors
/// An unknown name, a value of another type or out of its bounds: The error lists all that is
/// wrong.
pub fn read<T: RuleSettings>(settings: &Settings) -> Result<T, Vec<WrongSetting>> {
    let table = serde_json::Value::from_iter(settings.clone());
    let read: Result<T, _> = serde_path_to_error::deserialize(table);
    let settings = read.map_err(|error| {
        let field = error.path().to_string();
        let field = if field == "." { String::new() } else { field };
        let first = field.split(['.', '[']).next().unwrap_or_default();
        let value = settings.get(first).map_or_else(|| serde_json::json!(settings), Clone::clone);
        vec![WrongSetting { field, value: value.to_string(), remedy: meant(&error.inner().to_string()) }]
    })?;
    let wrong = settings.wrong();
    if wrong.is_empty() { Ok(settings) } else { Err(wrong) }
}

/// Why items of the list `field` are invalid.
pub(super) fn faulty<T: Serialize>(
    field: &str,
    items: &[T],
    fault: impl Fn(&T) -> Option<&'static str>,
) -> Vec<WrongSetting> {
    let wrong = |(at, item): (usize, &T)| {
        Some(WrongSetting::new(&format!("{field}[{at}]"), serde_json::json!(item).to_string(), fault(item)?))
    };
    items.iter().enumerate().filter_map(wrong).collect()
}

/// A list from a row: every item valid, and 1 to `most` of them.
///
/// # Errors
/// The value has another form, which the message describes.
pub(super) fn sound<T>(
    field: &str,
    items: Vec<T>,
    most: usize,
    fault: impl Fn(&T) -> Option<&'static str>,
) -> Result<Vec<T>, String> {
    if let Some(fault) = items.iter().find_map(fault) {
        return Err(fault.to_owned());
    }
    if items.is_empty() || items.len() > most {
        return Err(format!("it has {field}={}; 1 to {most} make sense", items.len()));
    }
    Ok(items)
}

/// A whole number within bounds, or what is wrong with it.
pub(super) fn count(field: &str, value: u64, low: u64, high: u64) -> Option<WrongSetting> {
    let fits = (low..=high).contains(&value);
    let remedy = || format!("choose a whole number from {low} to {high}");
    (!fits).then(|| WrongSetting::new(field, value.to_string(), &remedy()))
}

/// Milliseconds that end before the attempt at a score does, or what is wrong with them.
pub(super) fn scoring(field: &str, value: u64, low: u64) -> Option<WrongSetting> {
    let attempt = attempt_ms(Stage::Reward);
    let remedy = format!(
        "choose a whole number from {low} to {MAX_SCORING_MS}: an attempt at a score ends after {attempt} ms, \
         and what it waits for must have ended before"
    );
    let fits = (low..=MAX_SCORING_MS).contains(&value);
    (!fits).then(|| WrongSetting::new(field, value.to_string(), &remedy))
}

/// Mistakes in settings of this type.
pub(super) fn wrong<T: RuleSettings>(settings: &Settings) -> Vec<WrongSetting> {
    read::<T>(settings).err().unwrap_or_default()
}
