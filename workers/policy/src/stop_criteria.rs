//! Stop criteria: what ends a turn besides its length, for all engines. These are stop tokens, the
//! model's own end tokens, and stop strings.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use millrace_schemas::generate::Sampling;

use crate::LoadedVersion;
use crate::PolicyError;
use crate::text_codec::{self, Codec};

/// Tokens of the tail whose text is searched, besides one for each byte of the longest stop string:
/// the tail may begin in the middle of a character.
const SLACK: usize = 8;

/// The model's own end tokens, and its tokenizer once stop strings need it.
#[derive(Debug, Default)]
pub struct StopCriteria {
    tokens: Vec<u32>,
    tokenizer: Option<Bytes>,
    codec: OnceLock<Arc<Codec>>,
}

impl StopCriteria {
    /// Of a version's files.
    ///
    /// # Errors
    /// A file that names end tokens cannot be read.
    pub fn of(weights: &LoadedVersion) -> Result<Self, PolicyError> {
        let tokens = text_codec::end_tokens(|name| weights.files.get(name).cloned());
        let tokens = tokens.map_err(|error| PolicyError::Impossible(error.to_string()))?;
        Ok(Self {
            tokens,
            tokenizer: weights.files.get(text_codec::TOKENIZER_FILE).cloned(),
            codec: OnceLock::new(),
        })
    }

    /// The same as those of the version after `before`. A tokenizer that has not changed is not read
    /// again.
    #[must_use]
    pub fn following(self, before: &Self) -> Self {
        if self.tokenizer == before.tokenizer {
            return Self { codec: before.codec.clone(), ..self };
        }
        self
    }

    /// Reads the tokenizer if the turn has stop strings.
    ///
    /// # Errors
    /// The version has no readable tokenizer.
    pub fn prepare(&self, stops: &Stops) -> Result<(), PolicyError> {
        if stops.strings.is_empty() || self.codec.get().is_some() {
            return Ok(());
        }
        let codec = Codec::read(|name| self.tokenizer.clone().filter(|_| name == text_codec::TOKENIZER_FILE));
        let impossible = |error| PolicyError::Impossible(format!("stop_strings cannot be found: {error}"));
        // If another thread was first, its value is the same.
        let _ = self.codec.set(Arc::new(codec.map_err(impossible)?));
        Ok(())
    }

    /// All tokens that end a turn, for a request to a server.
    #[must_use]
    pub fn all_tokens(&self, stops: &Stops) -> Vec<u32> {
        let all: BTreeSet<u32> = self.tokens.iter().chain(&stops.tokens).copied().collect();
        all.into_iter().collect()
    }

    /// Whether the last token of `sampled` ends a turn.
    ///
    /// # Errors
    /// The tail cannot be decoded.
    pub fn end(&self, sampled: &[u32], stops: &Stops) -> Result<bool, PolicyError> {
        let Some(last) = sampled.last() else { return Ok(false) };
        if stops.tokens.contains(last) || self.tokens.contains(last) {
            return Ok(true);
        }
        let (Some(codec), false) = (self.codec.get(), stops.strings.is_empty()) else { return Ok(false) };
        // Each token is a byte or more, and no string was complete before this token.
        let longest = stops.strings.iter().map(String::len).max().unwrap_or(0);
        let tail = &sampled[sampled.len().saturating_sub(longest + SLACK)..];
        let text = codec.decode(tail, true).map_err(|error| PolicyError::Impossible(error.to_string()))?;
        Ok(stops.strings.iter().any(|stop| text.contains(stop.as_str())))
    }
}

/// The stop criteria of one request.
#[derive(Debug)]
pub struct Stops {
    /// Tokens that end the turn, besides the model's own.
    pub tokens: Vec<u32>,
    /// Texts that end the turn.
    pub strings: Vec<String>,
}

impl Stops {
    /// Those that a task asks for.
    #[must_use]
    pub fn of(sampling: &Sampling) -> Self {
        Self { tokens: sampling.stop_tokens.clone(), strings: sampling.stop_strings.clone() }
    }
}
