//! The probe of a version: the log-probabilities that its trainer computed for a fixed prompt. With
//! it an inference server proves that it has the weights.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::random::Stream;

/// The file of a version with the probe.
pub const PROBE_FILE: &str = "probe.json";
/// Tokens of the prompt, and the seed that draws them.
const PROMPT: (usize, u64) = (32, 0x6d69_6c6c_7261_6365);

/// The content of [`PROBE_FILE`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProbeRecord {
    /// The prompt. `[T]`, 2 or more.
    pub tokens: Vec<u32>,
    /// Natural log-probability, at temperature 1, of each token but the first after those before
    /// it. `[T - 1]`.
    pub logprobs: Vec<f32>,
}

impl ProbeRecord {
    /// The prompt of a model with this vocabulary and context. `[T]`, at most the context.
    #[must_use]
    pub fn prompt(vocabulary: u32, context: usize) -> Vec<u32> {
        let mut stream = Stream::new(PROMPT.1);
        (0..PROMPT.0.min(context)).map(|_| stream.below(u64::from(vocabulary.max(1))) as u32).collect()
    }

    /// Reads [`PROBE_FILE`].
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(content: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(content).map_err(|error| error.to_string())?;
        let (tokens, logprobs) = (record.tokens.len(), record.logprobs.len());
        if tokens < 2 || logprobs != tokens - 1 || record.logprobs.iter().any(|p| !p.is_finite()) {
            return Err(format!("tokens={tokens} logprobs={logprobs} do not make a record"));
        }
        Ok(record)
    }

    /// The content of [`PROBE_FILE`].
    #[must_use]
    pub fn to_json(&self) -> Bytes {
        serde_json::to_vec(self).expect("numbers are JSON; the log-probabilities are finite").into()
    }
}
