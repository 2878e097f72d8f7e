//! DeepSeek's calls, each between marks, and marks around all of them.

use super::tagged::{Read, between};
use super::{TurnPart, keep, tool_name};

const ALL: (&str, &str) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");
const ONE: (&str, &str) = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>");
const SEPARATOR: &str = "<｜tool▁sep｜>";
const FENCE: &str = "```";

pub(super) const MARKS: [&str; 5] = [ALL.0, ALL.1, ONE.0, ONE.1, SEPARATOR];

pub(super) fn parts(text: &str) -> Vec<TurnPart<'_>> {
    let mut parts = Vec::new();
    for part in between(text, ONE, read) {
        match part {
            TurnPart::Text(text) => {
                text.split(ALL.0).flat_map(|text| text.split(ALL.1)).for_each(|text| keep(text, &mut parts));
            }
            call => parts.push(call),
        }
    }
    parts
}

/// Of V3 the kind, the mark, the name, and a block of JSON; of V3.1 the name, the mark, and JSON.
fn read(inner: &str) -> Read {
    let (before, after) = inner.split_once(SEPARATOR).ok_or("it lacks <｜tool▁sep｜>")?;
    let (name, arguments) = match after.split_once(FENCE).filter(|_| !after.trim_start().starts_with('{')) {
        Some((name, block)) => {
            let block = block.strip_prefix("json").unwrap_or(block);
            (name, block.rsplit_once(FENCE).map_or(block, |(block, _)| block))
        }
        None => (before, after),
    };
    let name = tool_name(name)?;
    let arguments = serde_json::from_str(arguments.trim()).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), arguments))
}
