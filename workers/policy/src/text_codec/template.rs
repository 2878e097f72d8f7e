//! Chat templates, rendered as transformers does: Jinja with trimmed blocks, the methods of
//! Python's strings and lists, and no escaping. Templates have no clock, because a prompt must not
//! change from one day to the next. Those that use a date have a default for it, or get [`DATE`].

mod python_json;

use std::fmt::Write as _;

use chrono::{NaiveDate, NaiveTime};
use minijinja::{Environment, Error, ErrorKind, Value, context};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::{Message, TextError};

/// The name of the one template.
const NAME: &str = "chat";

/// Steps of one rendering: about a second. A template whose loops take more is refused.
const FUEL: u64 = 20_000_000;

/// What a template reads the clock with.
const CLOCK: &str = "strftime_now";
/// The day on which every template is rendered that has no default for it.
const DATE: NaiveDate = NaiveDate::from_ymd_opt(2025, 1, 1).expect("a day");

/// A chat template.
pub(super) struct Template {
    environment: Environment<'static>,
}

impl Template {
    /// Reads the template; it may name the special tokens.
    pub(super) fn new(source: String, tokens: Vec<(&'static str, String)>) -> Result<Self, TextError> {
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_function("raise_exception", refuse);
        environment.add_filter("tojson", python_json::to_json);
        if source.contains(CLOCK) && !source.contains(&format!("{CLOCK} is defined")) {
            environment.add_function(CLOCK, date);
        }
        for (name, token) in tokens {
            environment.add_global(name, token);
        }
        environment.add_template_owned(NAME, without_marks(source)).map_err(|e| fail(&e))?;
        Ok(Self { environment })
    }

    pub(super) fn render(&self, messages: &[Message<'_>], open: bool) -> Result<String, TextError> {
        let message = |message: &Message<'_>| {
            context! { role => message.speaker.role(), content => message.content }
        };
        let messages: Vec<Value> = messages.iter().map(message).collect();
        self.compute(&Value::from(messages), &Value::from(()), open)
    }

    /// The same with messages as objects, whatever their fields, and tools if there are any.
    pub(super) fn render_objects(
        &self,
        messages: &[serde_json::Value],
        tools: &[serde_json::Value],
        open: bool,
    ) -> Result<String, TextError> {
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from_serialize(tools) };
        self.compute(&Value::from_serialize(messages), &tools, open)
    }

    /// Whether the template's own text has `text`.
    pub(super) fn mentions(&self, text: &str) -> bool {
        self.environment.get_template(NAME).is_ok_and(|template| template.source().contains(text))
    }

    /// What there is none of is none, not undefined, as in transformers: a template may ask for either.
    fn compute(&self, messages: &Value, tools: &Value, open: bool) -> Result<String, TextError> {
        let context = context! { messages, tools, documents => (), add_generation_prompt => open };
        let template = self.environment.get_template(NAME).map_err(|e| fail(&e))?;
        template.render(context).map_err(|e| fail(&e))
    }
}

/// `{% generation %}` marks the assistant's text and renders nothing.
fn without_marks(mut source: String) -> String {
    for (open, close) in [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%-", "-%}")] {
        for word in ["generation", "endgeneration"] {
            // An empty condition trims the white space around it as the mark would.
            let instead = if word == "generation" { "if true" } else { "endif" };
            source = source.replace(&format!("{open} {word} {close}"), &format!("{open} {instead} {close}"));
        }
    }
    source
}

/// [`DATE`] as Python's `strftime` writes it.
#[expect(clippy::needless_pass_by_value, reason = "so does a function take its arguments")]
fn date(format: String) -> Result<String, Error> {
    let mut text = String::new();
    let midnight = DATE.and_time(NaiveTime::MIN).and_utc();
    write!(text, "{}", midnight.format(&format)).map_err(|_| {
        Error::new(ErrorKind::InvalidOperation, format!("{CLOCK}: {format:?} is no format of a date"))
    })?;
    Ok(text)
}

fn refuse(reason: String) -> Result<String, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, reason))
}

/// The error with its causes, which contain the template's own message.
fn fail(error: &Error) -> TextError {
    TextError::Render(format!("{error:#}").lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(source: &str) -> Result<String, TextError> {
        Template::new(source.to_owned(), Vec::new())?.render(&[], true)
    }

    #[test]
    fn a_template_without_a_default_for_its_date_gets_always_the_same() {
        let day =
            rendered("It is {{ strftime_now('%B %d, %Y') }} ({{ strftime_now(\"%Y-%m-%d\") }}).").unwrap();
        assert_eq!(day, "It is January 01, 2025 (2025-01-01).");
        let own = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}26 Jul 2024{% endif %}";
        assert_eq!(rendered(own).unwrap(), "26 Jul 2024");
        let error = rendered("{{ strftime_now('%Q') }}").unwrap_err().to_string();
        assert!(error.contains("%Q"), "{error}");
    }
}
