//! What of a turn is only thought: models that reason before they answer write it between `<think>` and `</think>`. A call
//! of a tool in there is a draft. Servers separate it before they read calls, so models are used to that.

use super::{Codec, Message, Speaker};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Where a model's thought begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thought {
    /// Its template knows of none.
    Never,
    /// The turn may begin with the mark.
    Written,
    /// The template ends with the mark, so that each turn begins within.
    Opened,
}

impl Codec {
    /// The turn's text in two: what was thought, and the rest. A thought that was not ended is all there is.
    pub(super) fn split_thought<'a>(&self, text: &'a str) -> (&'a str, &'a str) {
        let thinks = match self.thought.get_or_init(|| self.find_thought()) {
            Thought::Never => false,
            Thought::Written => text.trim_start().starts_with(OPEN),
            Thought::Opened => true,
        };
        if !thinks {
            return ("", text);
        }
        text.split_at(text.find(CLOSE).map_or(text.len(), |at| at + CLOSE.len()))
    }

    fn find_thought(&self) -> Thought {
        if !self.template.as_ref().is_some_and(|template| template.mentions(CLOSE)) {
            return Thought::Never;
        }
        let hello = Message { speaker: Speaker::User, content: "?" };
        match self.render(&[hello], true) {
            Ok(opened) if opened.trim_end().ends_with(OPEN) => Thought::Opened,
            Ok(_) | Err(_) => Thought::Written,
        }
    }
}
