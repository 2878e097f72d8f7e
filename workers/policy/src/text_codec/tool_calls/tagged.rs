//! Calls between two marks, as JSON or as text in tags.

use serde_json::Value;

use super::typed::{Given, typed};
use super::{TurnPart, Written, keep, tool_name};

/// The marks of one call, of most models; of Seed-OSS; of Nemotron's and of MiniMax's calls together.
pub(super) const CALL: (&str, &str) = ("<tool_call>", "</tool_call>");
pub(super) const SEED: (&str, &str) = ("<seed:tool_call>", "</seed:tool_call>");
pub(super) const LIST: (&str, &str) = ("<TOOLCALL>", "</TOOLCALL>");
pub(super) const MINIMAX: (&str, &str) = ("<minimax:tool_call>", "</minimax:tool_call>");

/// How the start and the end of a tag with a name are written.
struct Tag {
    open: (&'static str, &'static str),
    close: &'static str,
}

impl Tag {
    /// The name in the start of the tag with which `text` begins, and what follows it. `due` is what the tag is.
    fn opened<'a>(&self, text: &'a str, due: &str) -> Result<(&'a str, &'a str), String> {
        let (open, end) = self.open;
        let opened = text.strip_prefix(open).and_then(|rest| rest.split_once(end));
        let (name, after) = opened.ok_or_else(|| format!("where {due} is due, {open}…{end} is missing"))?;
        Ok((name.trim(), after))
    }
}

const FUNCTION: Tag = Tag { open: ("<function=", ">"), close: "</function>" };
const PARAMETER: Tag = Tag { open: ("<parameter=", ">"), close: "</parameter>" };
const INVOKE: Tag = Tag { open: ("<invoke name=\"", "\">"), close: "</invoke>" };
const NAMED_PARAMETER: Tag = Tag { open: ("<parameter name=\"", "\">"), close: "</parameter>" };

/// A call that was read: its tool's name and its arguments; or why it cannot be read.
pub(super) type Read = Result<(String, Value), String>;

/// The parts of a text, each call's inner text read by `read`.
pub(super) fn between<'a>(
    text: &'a str,
    marks: (&str, &str),
    read: impl Fn(&str) -> Read,
) -> Vec<TurnPart<'a>> {
    sections(text, marks, |inner| read(inner).map(|call| vec![call]))
}

/// The same where several calls may stand between two marks. All are read, or none.
pub(super) fn sections<'a>(
    text: &'a str,
    (open, close): (&str, &str),
    read: impl Fn(&str) -> Result<Vec<(String, Value)>, String>,
) -> Vec<TurnPart<'a>> {
    let (mut rest, mut parts) = (text, Vec::new());
    while let Some((before, after)) = rest.split_once(open) {
        let (inner, next) = after.split_once(close).unwrap_or((after, ""));
        keep(before, &mut parts);
        let written = &rest[before.len()..rest.len() - next.len()];
        match read(inner) {
            Ok(calls) if calls.is_empty() => {
                parts.push(TurnPart::Malformed { written, reason: "it holds no call".to_owned() });
            }
            Ok(calls) => {
                let call = |(name, arguments)| TurnPart::Call { name, arguments };
                parts.extend(calls.into_iter().map(call));
            }
            Err(reason) => parts.push(TurnPart::Malformed { written, reason }),
        }
        rest = next;
    }
    keep(rest, &mut parts);
    parts
}

pub(super) fn json(inner: &str) -> Read {
    let read = serde_json::from_str::<Written>(inner.trim());
    read.map(Written::call).map_err(|error| error.to_string())
}

/// A list of calls as JSON.
pub(super) fn list(inner: &str) -> Result<Vec<(String, Value)>, String> {
    let read = serde_json::from_str::<Vec<Written>>(inner.trim());
    read.map(|calls| calls.into_iter().map(Written::call).collect()).map_err(|error| error.to_string())
}

/// `<function=NAME>`, then `<parameter=KEY>VALUE</parameter>` for each argument, then `</function>`.
pub(super) fn function(inner: &str, tools: &[Value]) -> Result<Vec<(String, Value)>, String> {
    named(inner, (&FUNCTION, &PARAMETER), tools)
}

/// `<invoke name="NAME">`, then `<parameter name="KEY">VALUE</parameter>` for each argument, then `</invoke>`.
pub(super) fn invoke(inner: &str, tools: &[Value]) -> Result<Vec<(String, Value)>, String> {
    named(inner, (&INVOKE, &NAMED_PARAMETER), tools)
}

/// Calls as tags that have the tools' names. The last one's end may be missing.
fn named(
    inner: &str,
    (call, parameter): (&Tag, &Tag),
    tools: &[Value],
) -> Result<Vec<(String, Value)>, String> {
    let (mut rest, mut calls) = (inner.trim_start(), Vec::new());
    while !rest.is_empty() {
        let (name, after) = call.opened(rest, "a call")?;
        let (mut given, mut arguments) = (Vec::new(), after.trim_start());
        rest = loop {
            if let Some(next) = arguments.strip_prefix(call.close) {
                break next.trim_start();
            }
            if arguments.is_empty() {
                break "";
            }
            let (key, value) = parameter.opened(arguments, "an argument")?;
            let (value, next) =
                value.split_once(parameter.close).ok_or_else(|| unended(key, parameter.close))?;
            // A line of its own for the value: its breaks are no part of it.
            let value = value.strip_prefix('\n').unwrap_or(value);
            given.push(Given { key, value: value.strip_suffix('\n').unwrap_or(value) });
            arguments = next.trim_start();
        };
        calls.push(typed(name, &given, tools));
    }
    Ok(calls)
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
