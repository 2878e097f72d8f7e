//! A request in flight.

use millrace_policy::stop_criteria::{StopCriteria, Stops};
use millrace_policy::{EngineRequest, PolicyError};
use millrace_schemas::PolicyVersion;
use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask, Sampling};

use super::{Draw, Drawn};
use crate::decoder::Config;

/// A turn that is being sampled.
#[derive(Debug)]
pub(super) struct Active {
    /// The blocks of its KV cache; none while it waits.
    pub(super) blocks: Vec<usize>,
    /// The context, then the turn so far.
    pub(super) tokens: Vec<u32>,
    /// How many of `tokens` the KV cache covers.
    pub(super) cached: usize,
    task: Task,
    /// The turn so far.
    done: GenerateDone,
    finish: Option<Finish>,
    broken: Option<PolicyError>,
    /// Tokens of the context that the prefix cache had at first; `None` before.
    found: Option<usize>,
}

/// The parts of a task besides its context.
#[derive(Debug)]
struct Task {
    context: usize,
    max_new_tokens: usize,
    stops: Stops,
    /// How the token at position 0 would be drawn.
    draw: Draw,
}

impl Active {
    /// Checks a request against the model.
    pub(super) fn new(
        mut request: EngineRequest,
        config: &Config,
        stop_criteria: &StopCriteria,
    ) -> Result<Self, PolicyError> {
        let done = request.task.turn_so_far();
        check(&request.task, &done.tokens, config)?;
        let GenerateTask { context, max_new_tokens, sampling, seed, .. } = request.task;
        let stops = Stops::of(&sampling);
        stop_criteria.prepare(&stops)?;
        let task = Task {
            context: context.len(),
            max_new_tokens: max_new_tokens as usize,
            stops,
            draw: Draw {
                below: sampling.sample_below.filter(|&below| i64::from(below) < config.vocab_size),
                top_p: sampling.top_p,
                top_k: sampling.top_k,
                min_p: sampling.min_p,
                ..Draw::at(sampling.temperature, seed, 0)
            },
        };
        let mut tokens = context;
        tokens.extend_from_slice(&done.tokens);
        Ok(Self {
            blocks: Vec::new(),
            tokens,
            cached: 0,
            task,
            done,
            finish: None,
            broken: None,
            found: None,
        })
    }

    /// Whether it has blocks, and so is part of the batch.
    pub(super) fn has_blocks(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// Gives it blocks that cover its first `cached` tokens.
    pub(super) fn give_blocks(&mut self, blocks: Vec<usize>, cached: usize) {
        self.blocks = blocks;
        self.cached = cached;
        self.found.get_or_insert(cached);
    }

    /// Takes its blocks. The sampled tokens stay.
    pub(super) fn take_blocks(&mut self) -> Vec<usize> {
        self.cached = 0;
        std::mem::take(&mut self.blocks)
    }

    /// Positions that it may come to need.
    pub(super) fn positions(&self) -> usize {
        self.task.context + self.task.max_new_tokens
    }

    /// Tokens that the KV cache does not cover yet, 1 or more.
    pub(super) fn missing(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// The next `count` of them.
    pub(super) fn next(&self, count: usize) -> &[u32] {
        &self.tokens[self.cached..self.cached + count]
    }

    /// How the token after the last one is drawn.
    pub(super) fn draw(&self) -> Draw {
        Draw { position: self.tokens.len() as u64, ..self.task.draw }
    }

    /// Notes that the KV cache covers `count` more tokens. If they were the last, `drawn` is the
    /// next one.
    pub(super) fn advance(
        &mut self,
        count: usize,
        drawn: Drawn,
        version: PolicyVersion,
        stop_criteria: &StopCriteria,
    ) {
        self.cached += count;
        if self.cached < self.tokens.len() {
            return;
        }
        let Drawn { token, logprob, uncut_logprob } = drawn;
        if !logprob.is_finite() || !uncut_logprob.is_finite() {
            self.broken = Some(PolicyError::Impossible(format!(
                "{version} gives token={token} after tokens={} the log-probability {logprob}",
                self.tokens.len()
            )));
            return;
        }
        self.tokens.push(token);
        self.done.push(token, logprob, version);
        if self.task.draw.cuts() {
            self.done.uncut_logprobs.push(uncut_logprob);
        }
        match stop_criteria.end(&self.done.tokens, &self.task.stops) {
            Ok(true) => self.finish = Some(Finish::Stop),
            Ok(false) if self.done.tokens.len() >= self.task.max_new_tokens => {
                self.finish = Some(Finish::Length)
            }
            Ok(false) => {}
            Err(error) => self.broken = Some(error),
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.finish.is_some() || self.broken.is_some()
    }

    /// The turn of a request that ended, or what there is of it.
    pub(super) fn into_result(self) -> Result<GenerateDone, PolicyError> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let found = self.found.unwrap_or(0).min(self.task.context);
        Ok(GenerateDone {
            finish: self.finish.unwrap_or(Finish::Partial),
            prefill_tokens: (self.task.context - found) as u32,
            cached_tokens: found as u32,
            ..self.done
        })
    }
}

fn check(task: &GenerateTask, begun: &[u32], config: &Config) -> Result<(), PolicyError> {
    let refuse = |why: String| Err(PolicyError::Impossible(why));
    let (context, new) = (task.context.len(), task.max_new_tokens as usize);
    let most = config.context;
    if context == 0 || new == 0 {
        return refuse(format!("context={context} and max_new_tokens={new} must both be above 0"));
    }
    if context.saturating_add(new) > most {
        return refuse(format!("context={context} and max_new_tokens={new} pass the model's {most} tokens"));
    }
    if begun.len() >= new {
        let tokens = begun.len();
        return refuse(format!("the turn begins with tokens={tokens}, and max_new_tokens={new} leaves none"));
    }
    if let Some(token) =
        task.context.iter().chain(begun).find(|&&token| i64::from(token) >= config.vocab_size)
    {
        return refuse(format!("token={token} is outside the vocabulary of {}", config.vocab_size));
    }
    let Sampling { temperature, top_p, min_p, .. } = task.sampling;
    if !(top_p > 0.0 && top_p <= 1.0 && (0.0..=1.0).contains(&min_p)) {
        return refuse(format!("top_p={top_p} and min_p={min_p} must be above 0 to 1, and 0 to 1"));
    }
    if !temperature.is_finite() || temperature < 0.0 {
        return refuse(format!("temperature={temperature} must be 0 or more"));
    }
    if task.sampling.sample_below == Some(0) {
        return refuse("sample_below=0 leaves no token to draw".to_owned());
    }
    Ok(())
}
