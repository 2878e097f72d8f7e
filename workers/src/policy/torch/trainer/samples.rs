//! A batch's rollouts as rows to train on, checked.

use std::collections::BTreeMap;

use millrace_schemas::PolicyVersion;
use millrace_schemas::submit::Advantage;
use millrace_schemas::train_shard::{Batch, BatchRollout};

use crate::math::advantage::advantages;
use crate::policy::PolicyError;
use crate::policy::decoder::Config;

/// One rollout. T tokens, R of them sampled.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// `[T]`
    pub(super) tokens: Vec<u32>,
    /// Where the logits of each sampled token are: the position before it. `[R]`
    pub(super) wanted: Vec<usize>,
    /// Log-probabilities under the policy that sampled. `[R]`
    pub(super) behaviour: Vec<f32>,
    /// Log-probabilities that the ratio is taken against. `[R]`
    pub(super) old: Vec<f32>,
    /// Log-probabilities under the reference model. `[R]`, or empty where there is none.
    pub(super) reference: Vec<f32>,
    /// Whether the version trained on sampled the token. `[R]`
    pub(super) fresh: Vec<bool>,
    /// The rollout's advantage; every token's is the same.
    pub(super) advantage: f64,
}

impl Sample {
    /// Tokens that go into a forward: the last predicts nothing that was sampled.
    pub(super) const fn inputs(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// All rollouts of a batch.
#[derive(Debug)]
pub(super) struct Samples {
    /// In the batch's order.
    pub(super) rows: Vec<Sample>,
    /// Divides the logits; above 0.
    pub(super) temperature: f64,
    /// Only tokens below this were drawn; at most the vocabulary.
    pub(super) below: i64,
    /// What can be said without a model.
    pub(super) metrics: BTreeMap<String, f64>,
}

impl Samples {
    /// Reads a batch; `old` is the behaviour policy's until something else is computed.
    ///
    /// # Errors
    /// A rollout is malformed or not of this model: no worker can train on it.
    pub(super) fn of(batch: &Batch, advantage: Advantage, config: &Config) -> Result<Self, PolicyError> {
        let mut rows = Vec::new();
        let mut tally = BatchTally::default();
        for group in &batch.groups {
            let rewards: Vec<f64> = group.rollouts.iter().map(|rollout| rollout.reward).collect();
            let advantages = advantages(advantage, &rewards);
            tally.group(&advantages);
            for (rollout, &advantage) in group.rollouts.iter().zip(&advantages) {
                let refuse = |why: String| PolicyError::Impossible(format!("rollout={}: {why}", rollout.id));
                rows.push(sample(rollout, advantage, config, batch.base).map_err(refuse)?);
                tally.rollout(rollout, batch);
            }
        }
        if rows.iter().all(|row| row.wanted.is_empty()) {
            return Err(PolicyError::Impossible("the batch has no sampled token".to_owned()));
        }
        let temperature = if batch.temperature == 0.0 { 1.0 } else { batch.temperature };
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(PolicyError::Impossible(format!("temperature={temperature} must be 0 or more")));
        }
        let below = batch.sample_below.map_or(config.vocab_size, i64::from).min(config.vocab_size);
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts) {
            if let Some(token) = sampled(rollout).find(|token| i64::from(*token) >= below) {
                let why = format!(
                    "rollout={}: sampled token={token} where only those below {below} were drawn",
                    rollout.id
                );
                return Err(PolicyError::Impossible(why));
            }
        }
        Ok(Self { rows, temperature, below, metrics: tally.report() })
    }
}

/// The tokens that were sampled, in order; the ranges were checked by [`sample`].
fn sampled(rollout: &BatchRollout) -> impl Iterator<Item = u32> {
    rollout.turns.iter().flat_map(|turn| {
        let at = turn.at as usize;
        rollout.tokens[at..at + turn.logprobs.len()].iter().copied()
    })
}

fn sample(
    rollout: &BatchRollout,
    advantage: f64,
    config: &Config,
    base: PolicyVersion,
) -> Result<Sample, String> {
    let most = config.context;
    if rollout.tokens.len() > most {
        return Err(format!("tokens={} pass the model's {most}", rollout.tokens.len()));
    }
    if let Some(token) = rollout.tokens.iter().find(|&&token| i64::from(token) >= config.vocab_size) {
        return Err(format!("token={token} is outside the vocabulary of {}", config.vocab_size));
    }
    if !rollout.reward.is_finite() {
        return Err(format!("reward={} is not finite", rollout.reward));
    }
    let (mut wanted, mut behaviour, mut fresh, mut after) = (Vec::new(), Vec::new(), Vec::new(), 1);
    for turn in &rollout.turns {
        let (at, end) = (turn.at as usize, turn.at as usize + turn.logprobs.len());
        if at < after || end > rollout.tokens.len() {
            return Err(format!(
                "a turn of tokens {at} to {end} is not within {after} to {}",
                rollout.tokens.len()
            ));
        }
        if let Some(logprob) = turn.logprobs.iter().find(|logprob| !logprob.is_finite()) {
            return Err(format!("a log-probability of {logprob} in the turn at {at}"));
        }
        wanted.extend(at - 1..end - 1);
        behaviour.extend(&turn.logprobs);
        for segment in &turn.segments {
            fresh.extend(std::iter::repeat_n(segment.version == base, segment.tokens as usize));
        }
        fresh.resize(behaviour.len(), false);
        after = end;
    }
    let (tokens, old, reference) = (rollout.tokens.clone(), behaviour.clone(), Vec::new());
    Ok(Sample { tokens, wanted, behaviour, old, reference, fresh, advantage })
}

/// Sums over a batch.
#[derive(Debug, Default)]
struct BatchTally {
    groups: f64,
    without_signal: f64,
    rollouts: f64,
    reward: f64,
    success: f64,
    staleness: f64,
    max_staleness: f64,
    tokens: f64,
    sampled: f64,
}

impl BatchTally {
    fn group(&mut self, advantages: &[f64]) {
        self.groups += 1.0;
        self.without_signal += f64::from(u8::from(advantages.iter().all(|a| *a == 0.0)));
    }

    fn rollout(&mut self, rollout: &BatchRollout, batch: &Batch) {
        let staleness = batch.base.staleness(rollout.start_version) as f64;
        self.rollouts += 1.0;
        self.reward += rollout.reward;
        self.success += f64::from(u8::from(rollout.success));
        self.staleness += staleness;
        self.max_staleness = self.max_staleness.max(staleness);
        self.tokens += rollout.tokens.len() as f64;
        self.sampled += rollout.sampled_tokens() as f64;
    }

    fn report(&self) -> BTreeMap<String, f64> {
        let (rollouts, groups) = (self.rollouts.max(1.0), self.groups.max(1.0));
        let rows = [
            ("reward", self.reward / rollouts),
            ("success", self.success / rollouts),
            ("staleness", self.staleness / rollouts),
            ("max_staleness", self.max_staleness),
            ("groups_without_signal", self.without_signal / groups),
            ("rollouts", self.rollouts),
            ("tokens", self.tokens),
            ("sampled_tokens", self.sampled),
        ];
        rows.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
