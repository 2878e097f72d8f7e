//! Special tokens are the template's alone. The name of one in a message, such as `<|im_end|>` in
//! a page that a tool read, stays text: nobody who writes into a conversation ends a turn in it or
//! speaks in another's name.

use std::borrow::Cow;

use aho_corasick::AhoCorasick;
use serde_json::Value;
use tokenizers::Tokenizer;

use super::TextError;

/// Stands in a name, so that the tokenizer does not find it. A noncharacter of Unicode, which text
/// has no use for.
const BREAK: char = '\u{fdd0}';

/// The names of a tokenizer's special tokens.
pub(super) struct SpecialNames {
    /// Their texts, and [`BREAK`].
    names: AhoCorasick,
}

impl SpecialNames {
    pub(super) fn of(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let added = tokenizer.get_added_tokens_decoder();
        let special = added.into_values().filter(|token| token.special).map(|token| token.content);
        // A name of one character cannot be broken.
        let names = special.filter(|name| name.chars().nth(1).is_some());
        let names = AhoCorasick::new(names.chain([BREAK.to_string()]));
        let fail = |e: aho_corasick::BuildError| TextError::Read {
            file: super::TOKENIZER_FILE,
            reason: format!("too many special tokens: {e}"),
        };
        Ok(Self { names: names.map_err(fail)? })
    }

    /// The text with each name broken, to be read by [`pieces`]. A [`BREAK`] of its own becomes
    /// U+FFFD.
    pub(super) fn broken<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut starts: Vec<usize> =
            self.names.find_overlapping_iter(text).map(|found| found.start()).collect();
        if starts.is_empty() {
            return text.into();
        }
        starts.sort_unstable();
        starts.dedup();
        let mut broken = String::with_capacity(text.len() + starts.len() * BREAK.len_utf8());
        let mut read = 0;
        for start in starts {
            broken.push_str(&text[read..start]);
            let first = text[start..].chars().next().expect("a name has characters");
            read = start + first.len_utf8();
            broken.extend(if first == BREAK { [char::REPLACEMENT_CHARACTER, BREAK] } else { [first, BREAK] });
        }
        broken.push_str(&text[read..]);
        broken.into()
    }

    /// The same in all texts of an object, the names of its fields included.
    pub(super) fn broken_in(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.broken(text).into_owned()),
            Value::Array(values) => values.iter().map(|value| self.broken_in(value)).collect(),
            Value::Object(fields) => fields
                .iter()
                .map(|(name, value)| (self.broken(name).into_owned(), self.broken_in(value)))
                .collect(),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }
}

/// The text in pieces, none of which has the name of a special token that a message brought.
pub(super) fn pieces(rendered: &str) -> impl Iterator<Item = &str> {
    rendered.split(BREAK).filter(|piece| !piece.is_empty())
}
