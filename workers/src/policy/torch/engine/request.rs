//! A request in hand.

use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask, Segment};
use millrace_schemas::{PolicyVersion, RolloutId};

use super::Draw;
use crate::policy::decoder::Config;
use crate::policy::{EngineRequest, PolicyError};

/// A turn that is being sampled.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) rollout: RolloutId,
    /// Where its keys and values are; `None` while it waits.
    pub(super) slot: Option<usize>,
    /// The context, then what was sampled.
    pub(super) tokens: Vec<u32>,
    /// Of `tokens`, how many the slot holds.
    pub(super) cached: usize,
    task: Task,
    logprobs: Vec<f32>,
    segments: Vec<Segment>,
    finish: Option<Finish>,
    broken: Option<PolicyError>,
    /// Of the context: what was found in a slot, the first time.
    found: Option<usize>,
}

/// What is left of a task once its context has become the request's tokens.
#[derive(Debug)]
struct Task {
    context: usize,
    max_new_tokens: usize,
    temperature: f64,
    sample_below: Option<u32>,
    stop_tokens: Vec<u32>,
    seed: u64,
}

impl Active {
    /// Takes a request, or says why no engine with such a model can do it.
    pub(super) fn new(request: EngineRequest, config: &Config) -> Result<Self, PolicyError> {
        check(&request.task, config)?;
        let GenerateTask { context, max_new_tokens, sampling, seed, .. } = request.task;
        let task = Task {
            context: context.len(),
            max_new_tokens: max_new_tokens as usize,
            temperature: sampling.temperature,
            sample_below: sampling.sample_below,
            stop_tokens: sampling.stop_tokens,
            seed,
        };
        Ok(Self {
            rollout: request.rollout,
            slot: None,
            tokens: context,
            cached: 0,
            task,
            logprobs: Vec::new(),
            segments: Vec::new(),
            finish: None,
            broken: None,
            found: None,
        })
    }

    /// The slot of a request that has one.
    pub(super) fn slot_at(&self) -> usize {
        self.slot.expect("only requests with a slot are computed")
    }

    /// Gives it a slot that holds its first `cached` tokens.
    pub(super) fn seat(&mut self, slot: usize, cached: usize) {
        self.slot = Some(slot);
        self.cached = cached;
        self.found.get_or_insert(cached);
    }

    /// Takes its slot. What was sampled stays.
    pub(super) fn unseat(&mut self) {
        self.slot = None;
        self.cached = 0;
    }

    /// Positions that its slot must have.
    pub(super) fn positions(&self) -> usize {
        self.task.context + self.task.max_new_tokens
    }

    /// Tokens that are not in the slot yet, 1 or more.
    pub(super) fn missing(&self) -> usize {
        self.tokens.len() - self.cached
    }

    /// The next `count` of them.
    pub(super) fn next(&self, count: usize) -> &[u32] {
        &self.tokens[self.cached..self.cached + count]
    }

    /// How the token after the last one is drawn.
    pub(super) fn draw(&self) -> Draw {
        Draw {
            temperature: self.task.temperature,
            seed: self.task.seed,
            position: self.tokens.len() as u64,
            below: self.task.sample_below,
        }
    }

    /// `count` more tokens are in the slot. If they were the last, `token` is the next.
    pub(super) fn advance(&mut self, count: usize, token: u32, logprob: f32, version: PolicyVersion) {
        self.cached += count;
        if self.cached < self.tokens.len() {
            return;
        }
        if !logprob.is_finite() {
            self.broken = Some(PolicyError::Impossible(format!(
                "{version} gives token={token} after tokens={} the log-probability {logprob}",
                self.tokens.len()
            )));
            return;
        }
        self.tokens.push(token);
        self.logprobs.push(logprob);
        match self.segments.last_mut() {
            Some(segment) if segment.version == version => segment.tokens += 1,
            _ => self.segments.push(Segment { version, tokens: 1 }),
        }
        if self.task.stop_tokens.contains(&token) {
            self.finish = Some(Finish::Stop);
        } else if self.logprobs.len() >= self.task.max_new_tokens {
            self.finish = Some(Finish::Length);
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.finish.is_some() || self.broken.is_some()
    }

    /// The turn of a request that ended.
    pub(super) fn into_result(mut self) -> Result<GenerateDone, PolicyError> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let found = self.found.unwrap_or(0);
        Ok(GenerateDone {
            tokens: self.tokens.split_off(self.task.context),
            logprobs: self.logprobs,
            segments: self.segments,
            finish: self.finish.unwrap_or(Finish::Length),
            prefill_tokens: (self.task.context - found) as u32,
            cached_tokens: found as u32,
        })
    }
}

fn check(task: &GenerateTask, config: &Config) -> Result<(), PolicyError> {
    let refuse = |why: String| Err(PolicyError::Impossible(why));
    let (context, new) = (task.context.len(), task.max_new_tokens as usize);
    let most = config.context;
    if context == 0 || new == 0 {
        return refuse(format!("context={context} and max_new_tokens={new} must both be above 0"));
    }
    if context.saturating_add(new) > most {
        return refuse(format!("context={context} and max_new_tokens={new} pass the model's {most} tokens"));
    }
    if let Some(token) = task.context.iter().find(|&&token| i64::from(token) >= config.vocab_size) {
        return refuse(format!("token={token} is outside the vocabulary of {}", config.vocab_size));
    }
    let temperature = task.sampling.temperature;
    if !temperature.is_finite() || temperature < 0.0 {
        return refuse(format!("temperature={temperature} must be 0 or more"));
    }
    if task.sampling.sample_below == Some(0) {
        return refuse("sample_below=0 leaves no token to draw".to_owned());
    }
    Ok(())
}
