//! A request to a server, its reply, and the checks of both.

use millrace_schemas::generate::Sampling;

use super::ServerError;

/// Below this a log-probability is missing: servers write -9999 for minus infinity.
const LEAST_LOGPROB: f32 = -1000.0;

/// Tokens to sample.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    /// All tokens so far. `[T]`, never empty.
    pub context: &'a [u32],
    /// Tokens to sample at most, 1 or more.
    pub max_new_tokens: u32,
    /// Only what the server supports, see `ask.rs`.
    pub sampling: &'a Sampling,
    /// All tokens that end the turn: the sampling's and the model's own.
    pub stop_tokens: &'a [u32],
    /// The seed; `None` for a server that takes none, see `Server::takes_seeds`.
    pub seed: Option<u64>,
    /// Tokens of the model's vocabulary.
    pub vocabulary: u32,
    /// Whether the server's log-probabilities follow the temperature, see
    /// `Server::scales_logprobs`.
    pub scaled: bool,
    /// Id of the request at the server; never used twice.
    pub name: &'a str,
}

impl Ask<'_> {
    /// The bound on tokens, where it leaves any out.
    pub(super) fn below(&self) -> Option<u32> {
        self.sampling.sample_below.filter(|below| *below < self.vocabulary)
    }

    /// Refuses settings with which a server cannot draw, or cannot return the log-probabilities.
    pub(super) fn refuse_cuts(&self, server: &str) -> Result<(), ServerError> {
        let cut = match self.below() {
            Some(_) => "sample_below",
            None if self.sampling.cuts() => "top_p, top_k or min_p",
            None => return Ok(()),
        };
        Err(ServerError::Unfit(format!(
            "{server} does not tell log-probabilities under {cut}; leave it out, or generate with vLLM or the built-in \
             engine"
        )))
    }

    /// Refuses a cut where what is left out is more than that: a server scores what it sampled by
    /// the model's own probabilities alone, at temperature 1.
    pub(super) fn refuse_scaled_cuts(&self, server: &str) -> Result<(), ServerError> {
        let temperature = self.sampling.temperature;
        if !self.sampling.cuts() || (temperature == 1.0 && self.below().is_none()) {
            return Ok(());
        }
        Err(ServerError::Unfit(format!(
            "{server} does not tell log-probabilities at temperature={temperature} without top_p, top_k or min_p, which \
             training compares; leave those out, or choose rollout.temperature = 1 without rollout.actions_only, or \
             generate with the built-in engine"
        )))
    }

    /// Refuses a temperature at which the log-probabilities would be of another distribution.
    pub(super) fn refuse_unscaled(&self, remedy: &str) -> Result<(), ServerError> {
        let temperature = self.sampling.temperature;
        let plain = (temperature == 0.0 || temperature == 1.0) && self.below().is_none();
        if self.scaled || (plain && !self.sampling.cuts()) {
            return Ok(());
        }
        Err(ServerError::Unfit(format!(
            "its log-probabilities are not those of the distribution that is drawn from, at temperature={temperature}; \
             {remedy}"
        )))
    }
}

/// Tokens that a server sampled with one set of weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Piece {
    /// The tokens: as many as were asked for, or fewer, where the server stopped at a token or
    /// text, at a boundary or by its own reasons. `[N]`
    pub tokens: Vec<u32>,
    /// Their log-probabilities under the distribution drawn from; for temperature 0: at temperature
    /// 1. `[N]`
    pub logprobs: Vec<f32>,
    /// Tokens of the context that the server reports as cached.
    pub cached: u32,
    /// The label of the weights in the reply, if it has one.
    pub label: Option<String>,
    /// Tokens of the context by the reply, if it reports them.
    pub(super) prompt: Option<usize>,
}

impl Piece {
    /// An empty piece.
    pub(super) const fn none() -> Self {
        Self { tokens: Vec::new(), logprobs: Vec::new(), cached: 0, label: None, prompt: None }
    }

    /// Refuses a piece that could not be trained on.
    pub(super) fn checked(self, ask: &Ask<'_>) -> Result<Self, ServerError> {
        let (tokens, logprobs) = (self.tokens.len(), self.logprobs.len());
        if tokens != logprobs {
            return Err(ServerError::malformed(&format!(
                "tokens={tokens} and logprobs={logprobs} must agree"
            )));
        }
        if let Some(found) = self.prompt.filter(|found| *found != ask.context.len()) {
            let sent = ask.context.len();
            return Err(ServerError::malformed(&format!(
                "it sampled after a context of tokens={found} where tokens={sent} were sent"
            )));
        }
        if self.tokens.len() > ask.max_new_tokens as usize {
            let asked = ask.max_new_tokens;
            return Err(ServerError::malformed(&format!("tokens={tokens} where {asked} were asked for")));
        }
        let bound = ask.below().unwrap_or(ask.vocabulary);
        if let Some(token) = self.tokens.iter().find(|token| **token >= bound) {
            return Err(ServerError::malformed(&format!("token={token} is not below {bound}")));
        }
        let odd = |p: &&f32| !p.is_finite() || **p > 1e-3 || **p < LEAST_LOGPROB;
        if let Some(value) = self.logprobs.iter().find(odd) {
            return Err(ServerError::malformed(&format!("logprob={value} of a token that was sampled")));
        }
        Ok(self)
    }
}
