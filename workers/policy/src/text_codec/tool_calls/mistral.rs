//! Mistral's calls: one list of all after a mark, or, of later models, a mark, a name and arguments for each.

use serde_json::Value;

use super::{TurnPart, Written, first_value, keep, tool_name};

pub(super) const OPEN: &str = "[TOOL_CALLS]";
/// Between name and arguments, before the call's id, which is the server's to give.
pub(super) const CALL_ID: &str = "[CALL_ID]";
/// Between name and arguments.
pub(super) const ARGUMENTS: &str = "[ARGS]";

pub(super) fn parts(text: &str) -> Vec<TurnPart<'_>> {
    let mut parts = Vec::new();
    let starts: Vec<usize> = text.match_indices(OPEN).map(|(at, _)| at).collect();
    keep(&text[..starts.first().copied().unwrap_or(text.len())], &mut parts);
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    for (start, end) in starts.iter().copied().zip(ends) {
        let written = &text[start..end];
        match read(written[OPEN.len()..].trim_start()) {
            Ok((calls, after)) => {
                parts.extend(calls.into_iter().map(Written::part));
                keep(after, &mut parts);
            }
            Err(reason) => parts.push(TurnPart::Malformed { written, reason }),
        }
    }
    parts
}

/// The calls after a mark, and the text after them.
fn read(text: &str) -> Result<(Vec<Written>, &str), String> {
    if text.starts_with('[') && !text.starts_with(ARGUMENTS) && !text.starts_with(CALL_ID) {
        return first_value(text);
    }
    let head = text.find('{').ok_or("it has neither a list of calls nor arguments")?;
    let (name, arguments) = text.split_at(head);
    let id = name.split_once(CALL_ID).or_else(|| name.split_once(ARGUMENTS));
    let name = tool_name(id.map_or(name, |(name, _)| name))?;
    let (arguments, after) = first_value::<Value>(arguments)?;
    Ok((vec![Written { name: name.to_owned(), arguments }], after))
}
