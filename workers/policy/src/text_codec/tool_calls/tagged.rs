//! Calls between `<tool_call>` and `</tool_call>`, as JSON or as text in tags.

use serde_json::Value;

use super::typed::{Given, typed};
use super::{TurnPart, Written, keep, tool_name};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// A call that was read: its tool's name and its arguments; or why it cannot be read.
pub(super) type Read = Result<(String, Value), String>;

/// The parts of a text, each call's inner text read by `read`.
pub(super) fn parts(text: &str, read: impl Fn(&str) -> Read) -> Vec<TurnPart<'_>> {
    between(text, (OPEN, CLOSE), read)
}

/// The same with other marks.
pub(super) fn between<'a>(
    text: &'a str,
    (open, close): (&str, &str),
    read: impl Fn(&str) -> Read,
) -> Vec<TurnPart<'a>> {
    let (mut rest, mut parts) = (text, Vec::new());
    while let Some((before, after)) = rest.split_once(open) {
        let (inner, next) = after.split_once(close).unwrap_or((after, ""));
        keep(before, &mut parts);
        parts.push(match read(inner) {
            Ok((name, arguments)) => TurnPart::Call { name, arguments },
            Err(reason) => {
                TurnPart::Malformed { written: &rest[before.len()..rest.len() - next.len()], reason }
            }
        });
        rest = next;
    }
    keep(rest, &mut parts);
    parts
}

pub(super) fn json(inner: &str) -> Read {
    let read = serde_json::from_str::<Written>(inner.trim());
    read.map(Written::call).map_err(|error| error.to_string())
}

/// `<function=NAME>`, then `<parameter=KEY>VALUE</parameter>` for each argument, then `</function>`.
pub(super) fn function(inner: &str, tools: &[Value]) -> Read {
    let named = inner.trim_start().strip_prefix("<function=").and_then(|rest| rest.split_once('>'));
    let (name, rest) = named.ok_or("it lacks <function=NAME>")?;
    let mut rest = rest.rsplit_once("</function>").map_or(rest, |(arguments, _)| arguments).trim_start();
    let mut given = Vec::new();
    while !rest.is_empty() {
        let key = rest.strip_prefix("<parameter=").and_then(|rest| rest.split_once('>'));
        let (key, after) = key.ok_or("where an argument is due, <parameter=KEY> is missing")?;
        let (value, next) = after.split_once("</parameter>").ok_or_else(|| unended(key, "</parameter>"))?;
        // A line of its own for the value: its breaks are no part of it.
        let value = value.strip_prefix('\n').unwrap_or(value);
        given.push(Given { key: key.trim(), value: value.strip_suffix('\n').unwrap_or(value) });
        rest = next.trim_start();
    }
    Ok(typed(name.trim(), &given, tools))
}

/// The name, then `<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` for each argument.
pub(super) fn arg_keys(inner: &str, tools: &[Value]) -> Read {
    const KEY: &str = "<arg_key>";
    let (name, mut rest) = inner.find(KEY).map_or((inner, ""), |at| inner.split_at(at));
    let name = tool_name(name)?;
    let mut given = Vec::new();
    while !rest.is_empty() {
        let after = rest.strip_prefix(KEY).ok_or("where an argument is due, <arg_key> is missing")?;
        let (key, after) = after.split_once("</arg_key>").ok_or("</arg_key> is missing")?;
        let value = after.trim_start().strip_prefix("<arg_value>");
        let value = value.ok_or_else(|| unended(key, "<arg_value>"))?;
        let (value, next) = value.split_once("</arg_value>").ok_or_else(|| unended(key, "</arg_value>"))?;
        given.push(Given { key: key.trim(), value });
        rest = next.trim_start();
    }
    Ok(typed(name, &given, tools))
}

fn unended(key: &str, missing: &str) -> String {
    let key = millrace_schemas::text::shown(key, 64);
    format!("{missing} of argument {key:?} is missing")
}
