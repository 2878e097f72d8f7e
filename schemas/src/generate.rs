//! `generate`: the policy samples one turn of a rollout.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::limits::MAX_CONTEXT_TOKENS;
use crate::omit;
use crate::trajectory::EntryRef;
use crate::version::PolicyVersion;

/// Sample one turn after `context`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GenerateTask {
    /// All tokens of the rollout so far, prompt first. `[T]`, never empty once the prefix is
    /// resolved.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<u32>,
    /// Log entries of the context, in order: the first observation, then alternately turn and
    /// observation. Empty if `context` is complete. `[1 + 2·turns]`
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<EntryRef>,
    /// Tokens of the last entry of `prefix`; empty if they are to be fetched like the others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latest: Vec<u32>,
    /// Log entry of the part of the turn that another worker sampled before it left. It is a head
    /// start: a worker that does not know it samples the turn from its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<EntryRef>,
    /// The content of `begun`, once it is resolved. The answer is the whole turn, this part first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Box<GenerateDone>>,
    /// The oldest version that may sample; an engine with older weights fetches newer ones first.
    pub min_version: PolicyVersion,
    /// Tokens of the turn at most, 1 or more.
    pub max_new_tokens: u32,
    /// How to sample.
    pub sampling: Sampling,
    /// Seeds the request's own random stream: the result does not depend on other requests in the
    /// batch.
    pub seed: u64,
}

/// How tokens are drawn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sampling {
    /// Temperature: divides the logits; 0 is greedy.
    pub temperature: f64,
    /// Tokens that end the turn; the end token is part of the turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_tokens: Vec<u32>,
    /// Only tokens below this are drawn, and log-probs are over those alone; `None` for the whole
    /// vocabulary. Sampler and trainer use the same distribution.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_below: Option<u32>,
    /// Of the likeliest tokens only those are drawn whose probabilities add up to this; 1 for all
    /// of them.
    #[serde(default = "one", skip_serializing_if = "omit::is_one")]
    pub top_p: f64,
    /// Only as many of the likeliest tokens are drawn, and those that are as likely as the last; 0
    /// for all of them.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub top_k: u32,
    /// Only tokens are drawn that are at least this share as likely as the likeliest; 0 for all of
    /// them.
    #[serde(default, skip_serializing_if = "omit::is_default")]
    pub min_p: f64,
    /// Texts that end the turn. The token that completes one is the turn's last. It may begin or
    /// end within a token.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stop_strings: Vec<String>,
}

const fn one() -> f64 {
    1.0
}

impl Sampling {
    /// Draws from the whole distribution at `temperature`.
    #[must_use]
    pub const fn at(temperature: f64) -> Self {
        Self {
            temperature,
            stop_tokens: Vec::new(),
            sample_below: None,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            stop_strings: Vec::new(),
        }
    }

    /// Whether some tokens are never drawn because they are unlikely. A trainer cannot draw the
    /// same line, for its probabilities differ by rounding: it compares
    /// [`GenerateDone::uncut_logprobs`], which leave out the cut alone.
    #[must_use]
    pub const fn cuts(&self) -> bool {
        self.temperature > 0.0 && (self.top_p < 1.0 || self.top_k > 0 || self.min_p > 0.0)
    }
}

/// One sampled turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GenerateDone {
    /// The tokens sampled, in order. `[N]`, 1 or more.
    pub tokens: Vec<u32>,
    /// Natural log-probability of each token under the distribution it was drawn from (for
    /// temperature 0: at temperature 1). `[N]`, finite and at most 0.
    pub logprobs: Vec<f32>,
    /// The same under the distribution before unlikely tokens were cut off, at the same temperature
    /// and over the same `sample_below`. `[N]`; empty if the sampling does not cut
    /// ([`Sampling::cuts`]), because they are then the same numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uncut_logprobs: Vec<f32>,
    /// The versions that sampled the tokens, in order; the counts add up to N. Stamped by the
    /// engine.
    pub segments: Vec<Segment>,
    /// Why the turn ended.
    pub finish: Finish,
    /// Tokens of the context that were prefilled.
    #[serde(default)]
    pub prefill_tokens: u32,
    /// Tokens of the context that were in the prefix cache.
    #[serde(default)]
    pub cached_tokens: u32,
}

/// Consecutive tokens that one version sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Segment {
    /// The version.
    pub version: PolicyVersion,
    /// Number of tokens, 1 or more.
    pub tokens: u32,
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// A stop token was sampled, one of the model's own end tokens, or the last of a stop string.
    Stop,
    /// `max_new_tokens` were sampled.
    Length,
    /// The turn did not end: its worker left. Another one continues it.
    Partial,
}

/// Why a turn is malformed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MalformedTurn {
    /// A turn that did not end, as the outcome of a task that is done.
    #[error("turn has finish=partial; it is returned, for another worker to continue it")]
    Partial,
    /// No token at all.
    #[error("turn has no tokens")]
    Empty,
    /// A segment without tokens: a version that sampled nothing.
    #[error("turn has a segment of {0} with tokens=0; each has 1 or more")]
    EmptySegment(PolicyVersion),
    /// More than a rollout may have.
    #[error("turn has tokens={0}, above {MAX_CONTEXT_TOKENS}")]
    TooLong(usize),
    /// Arrays of different lengths.
    #[error(
        "turn has tokens={tokens} logprobs={logprobs} segment_tokens={segment_tokens}; all three must agree"
    )]
    Lengths {
        /// Length of `tokens`.
        tokens: usize,
        /// Length of `logprobs`.
        logprobs: usize,
        /// Sum over `segments`.
        segment_tokens: u64,
    },
    /// [`GenerateDone::uncut_logprobs`] is neither empty nor complete.
    #[error("turn has tokens={tokens} uncut_logprobs={uncut_logprobs}; the latter must be 0 or the same")]
    UncutLengths {
        /// Length of `tokens`.
        tokens: usize,
        /// Length of `uncut_logprobs`.
        uncut_logprobs: usize,
    },
    /// A log-prob that is NaN, infinite or positive.
    #[error("turn has logprobs[{index}]={value}; each must be finite and at most 0")]
    Logprob {
        /// Index of the token.
        index: usize,
        /// The value.
        value: f32,
    },
    /// A segment of a version that may not sample.
    #[error("turn has a segment of {segment} where {at_least} to {at_most} may sample")]
    Version {
        /// The segment's version.
        segment: PolicyVersion,
        /// The oldest that may.
        at_least: PolicyVersion,
        /// The newest that exists.
        at_most: PolicyVersion,
    },
}

impl GenerateTask {
    /// A whole turn after `context`, by any version.
    #[must_use]
    pub const fn new(context: Vec<u32>, max_new_tokens: u32, sampling: Sampling, seed: u64) -> Self {
        Self {
            context,
            prefix: Vec::new(),
            latest: Vec::new(),
            begun: None,
            sampled: None,
            min_version: PolicyVersion(0),
            max_new_tokens,
            sampling,
            seed,
        }
    }

    /// The oldest version that may have sampled a token of the turn.
    #[must_use]
    pub fn oldest_version(&self) -> PolicyVersion {
        let begun = self.sampled.as_ref().and_then(|sampled| sampled.segments.first());
        begun.map_or(self.min_version, |segment| segment.version)
    }

    /// The turn so far: what another worker sampled of it, or nothing.
    #[must_use]
    pub fn turn_so_far(&mut self) -> GenerateDone {
        let begun = self.sampled.take().map(|sampled| *sampled);
        begun.unwrap_or_else(|| GenerateDone::begun(self.context.len() as u32))
    }
}

impl GenerateDone {
    /// A turn without sampled tokens, after a context of which so many tokens have to be prefilled.
    #[must_use]
    pub const fn begun(prefill_tokens: u32) -> Self {
        Self {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            uncut_logprobs: Vec::new(),
            segments: Vec::new(),
            finish: Finish::Length,
            prefill_tokens,
            cached_tokens: 0,
        }
    }

    /// A turn that `version` sampled, with the log-prob of each token. It ended at its limit.
    #[must_use]
    pub fn sampled(tokens: &[u32], logprobs: &[f32], version: PolicyVersion) -> Self {
        let mut done = Self::begun(0);
        done.extend(tokens, logprobs, version);
        done
    }

    /// Adds a token that `version` sampled.
    pub fn push(&mut self, token: u32, logprob: f32, version: PolicyVersion) {
        self.extend(&[token], &[logprob], version);
    }

    /// Adds tokens that `version` sampled, and the log-prob of each.
    pub fn extend(&mut self, tokens: &[u32], logprobs: &[f32], version: PolicyVersion) {
        let added = tokens.len() as u32;
        match self.segments.last_mut() {
            Some(segment) if segment.version == version => segment.tokens += added,
            _ if added > 0 => self.segments.push(Segment { version, tokens: added }),
            _ => {}
        }
        self.tokens.extend_from_slice(tokens);
        self.logprobs.extend_from_slice(logprobs);
    }

    /// Refuses a turn that could not be trained on.
    ///
    /// # Errors
    /// Lengths disagree or are beyond bounds, or a log-probability is NaN, infinite or positive.
    pub fn check(&self) -> Result<(), MalformedTurn> {
        let tokens = self.tokens.len();
        check_lengths(tokens, self.logprobs.len(), &self.segments)?;
        let uncut_logprobs = self.uncut_logprobs.len();
        if uncut_logprobs != 0 && uncut_logprobs != tokens {
            return Err(MalformedTurn::UncutLengths { tokens, uncut_logprobs });
        }
        for logprobs in [&self.logprobs, &self.uncut_logprobs] {
            // A rounding error above 0 is no probability above 1.
            if let Some(index) = logprobs.iter().position(|p| !p.is_finite() || *p > 1e-3) {
                return Err(MalformedTurn::Logprob { index, value: logprobs[index] });
            }
        }
        Ok(())
    }

    /// Refuses segments outside `[at_least, at_most]` or out of order.
    ///
    /// # Errors
    /// Names the first segment that does not fit.
    pub fn check_versions(
        &self,
        at_least: PolicyVersion,
        at_most: PolicyVersion,
    ) -> Result<(), MalformedTurn> {
        check_versions(&self.segments, at_least, at_most)
    }
}

/// Refuses a turn of lengths that disagree or are beyond bounds.
pub(crate) fn check_lengths(
    tokens: usize,
    logprobs: usize,
    segments: &[Segment],
) -> Result<(), MalformedTurn> {
    if tokens == 0 {
        return Err(MalformedTurn::Empty);
    }
    if tokens > MAX_CONTEXT_TOKENS {
        return Err(MalformedTurn::TooLong(tokens));
    }
    if let Some(empty) = segments.iter().find(|segment| segment.tokens == 0) {
        return Err(MalformedTurn::EmptySegment(empty.version));
    }
    let segment_tokens = segments.iter().map(|s| u64::from(s.tokens)).sum();
    if tokens != logprobs || tokens as u64 != segment_tokens {
        return Err(MalformedTurn::Lengths { tokens, logprobs, segment_tokens });
    }
    Ok(())
}

/// Refuses segments outside `[at_least, at_most]` or out of order.
///
/// # Errors
/// Names the first segment that does not fit.
pub fn check_versions(
    segments: &[Segment],
    at_least: PolicyVersion,
    at_most: PolicyVersion,
) -> Result<(), MalformedTurn> {
    let mut from = at_least;
    for segment in segments {
        if segment.version < from || segment.version > at_most {
            return Err(MalformedTurn::Version { segment: segment.version, at_least: from, at_most });
        }
        from = segment.version;
    }
    Ok(())
}
