//! What ends a turn besides its length: stop tokens, the model's own end tokens, and stop strings.

use bytes::Bytes;

use crate::policy::PolicyError;
use crate::text::{self, Codec};
use crate::weights::LoadedVersion;

/// Tokens of the tail whose text is searched, besides one for each byte of the longest stop string: the tail may
/// begin in the middle of a character.
const SLACK: usize = 8;

/// The model's own end tokens, and its tokenizer once it was needed.
#[derive(Debug)]
pub(super) struct Ends {
    tokens: Vec<u32>,
    tokenizer: Option<Bytes>,
    codec: Option<Codec>,
}

impl Ends {
    /// Of a version's files.
    pub(super) fn of(weights: &LoadedVersion) -> Result<Self, PolicyError> {
        let tokens = text::end_tokens(|name| weights.files.get(name).cloned());
        let tokens = tokens.map_err(|error| PolicyError::Impossible(error.to_string()))?;
        Ok(Self { tokens, tokenizer: weights.files.get(text::TOKENIZER_FILE).cloned(), codec: None })
    }

    /// The same of the next version; a tokenizer that has not changed is not read again.
    pub(super) fn follow(&mut self, weights: &LoadedVersion) -> Result<(), PolicyError> {
        let mut next = Self::of(weights)?;
        if next.tokenizer == self.tokenizer {
            next.codec = self.codec.take();
        }
        *self = next;
        Ok(())
    }

    /// Makes ready for stop strings.
    pub(super) fn read_codec(&mut self) -> Result<(), PolicyError> {
        if self.codec.is_none() {
            let json = self.tokenizer.clone();
            let codec = Codec::read(|name| json.clone().filter(|_| name == text::TOKENIZER_FILE));
            let impossible =
                |error| PolicyError::Impossible(format!("stop_strings cannot be found: {error}"));
            self.codec = Some(codec.map_err(impossible)?);
        }
        Ok(())
    }

    /// Whether the last token of `sampled` ends a turn.
    pub(super) fn end(&self, sampled: &[u32], stops: &Stops) -> Result<bool, PolicyError> {
        let Some(last) = sampled.last() else { return Ok(false) };
        if stops.tokens.contains(last) || self.tokens.contains(last) {
            return Ok(true);
        }
        let (Some(codec), false) = (&self.codec, stops.strings.is_empty()) else { return Ok(false) };
        // Each token is a byte or more, and no string was complete before this token.
        let longest = stops.strings.iter().map(String::len).max().unwrap_or(0);
        let tail = &sampled[sampled.len().saturating_sub(longest + SLACK)..];
        let text = codec.decode(tail, true).map_err(|error| PolicyError::Impossible(error.to_string()))?;
        Ok(stops.strings.iter().any(|stop| text.contains(stop.as_str())))
    }
}

/// What ends a request's turn.
#[derive(Debug)]
pub(super) struct Stops {
    pub(super) tokens: Vec<u32>,
    pub(super) strings: Vec<String>,
}
