//! A batch's rollouts as rows to train on, validated.

use std::collections::BTreeMap;

use millrace_policy::PolicyError;
use millrace_schemas::PolicyVersion;
use millrace_schemas::train_shard::{Batch, BatchRollout};

use crate::decoder::Config;

/// Digest of an observation. Those of unlike observations differ.
pub(super) type State = [u32; 4];

/// One rollout. T tokens, R of them sampled. Of a row that another member computes, tokens and
/// log-probabilities may be elsewhere; everything else is known.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// T.
    pub(super) length: usize,
    /// `[T]`, or empty where they are elsewhere.
    pub(super) tokens: Vec<u32>,
    /// Position of the logits of each sampled token: the one before it. `[R]`
    pub(super) logit_positions: Vec<usize>,
    /// Log-probabilities under the behaviour policy. `[R]`, or empty where they are elsewhere.
    pub(super) behaviour: Vec<f32>,
    /// Log-probabilities under the policy of the ratio's denominator. `[R]`, or empty where they are
    /// elsewhere and no advantage depends on them.
    pub(super) old: Vec<f32>,
    /// Log-probabilities under the reference model. `[R]`, or empty where there is none.
    pub(super) reference: Vec<f32>,
    /// Whether the version trained on sampled the token. `[R]`
    pub(super) on_policy: Vec<bool>,
    /// Sampled tokens of each turn; they add up to R.
    pub(super) turns: Vec<usize>,
    /// What was observed before each turn, as a digest. `[turns]`, or empty where no advantage
    /// depends on it.
    pub(super) states: Vec<State>,
    /// `[R]`, or empty until there are any.
    pub(super) advantage: Vec<f32>,
    /// The critic's values. `[R]`, or empty without a critic.
    pub(super) values: Vec<f32>,
    /// The returns that it should predict. `[R]`, or empty without a critic.
    pub(super) returns: Vec<f32>,
    /// Weights that correct for the behaviour policy. `[R]`, or empty without a correction.
    pub(super) weight: Vec<f32>,
    /// 1 where the rollout reached the goal, else 0. `[R]`, or empty without imitation.
    pub(super) reached: Vec<f32>,
    /// The rollout was cut off, and the run masks such rollouts.
    pub(super) masked: bool,
    /// Whether the token counts. `[R]`, or empty where all do.
    pub(super) kept: Vec<bool>,
}

impl Sample {
    /// Sampled tokens in the loss's denominator.
    pub(super) const fn counted(&self) -> usize {
        if self.masked { 0 } else { self.logit_positions.len() }
    }

    /// Tokens that go into a forward: the last predicts nothing that was sampled.
    pub(super) const fn inputs(&self) -> usize {
        self.length - 1
    }

    /// Whether tokens and log-probabilities are here.
    pub(super) const fn is_here(&self) -> bool {
        self.tokens.len() == self.length
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
    /// Metrics of the batch that need no model.
    pub(super) metrics: BTreeMap<String, f64>,
}

impl Samples {
    /// Reads a batch. `old` is the behaviour policy's until it is computed, and there are no
    /// advantages yet.
    ///
    /// # Errors
    /// A rollout is malformed or not of this model: no worker can train on it.
    pub(super) fn of(batch: &Batch, config: &Config) -> Result<Self, PolicyError> {
        let mut rows = Vec::new();
        let mut step_metrics = BatchMetrics::default();
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts) {
            let refuse = |why: String| PolicyError::Impossible(format!("rollout={}: {why}", rollout.id));
            rows.push(sample(rollout, config, batch.base).map_err(refuse)?);
            step_metrics.rollout(rollout, batch);
        }
        if rows.iter().all(|row| row.logit_positions.is_empty()) {
            return Err(PolicyError::Impossible("the batch has no sampled token".to_owned()));
        }
        let temperature = if batch.temperature == 0.0 { 1.0 } else { batch.temperature };
        if !temperature.is_finite() || temperature < 0.0 {
            return Err(PolicyError::Impossible(format!("temperature={temperature} must be 0 or more")));
        }
        let below = batch.sample_below.map_or(config.vocab_size, i64::from).min(config.vocab_size);
        let here = |rollout: &&BatchRollout| rollout.stored.is_none();
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts).filter(here) {
            if let Some(token) = sampled(rollout).find(|token| i64::from(*token) >= below) {
                let why = format!(
                    "rollout={}: sampled token={token} where only those below {below} were drawn",
                    rollout.id
                );
                return Err(PolicyError::Impossible(why));
            }
        }
        Ok(Self { rows, temperature, below, metrics: step_metrics.report() })
    }
}

/// The tokens that were sampled, in order; the ranges were checked by [`sample`].
fn sampled(rollout: &BatchRollout) -> impl Iterator<Item = u32> {
    rollout.turns.iter().flat_map(|turn| {
        let at = turn.at as usize;
        rollout.tokens[at..at + turn.logprobs.len()].iter().copied()
    })
}

fn sample(rollout: &BatchRollout, config: &Config, base: PolicyVersion) -> Result<Sample, String> {
    let (length, most) = (rollout.length(), config.context);
    if length > most {
        return Err(format!("tokens={length} pass the model's {most}"));
    }
    if let Some(token) = rollout.tokens.iter().find(|&&token| i64::from(token) >= config.vocab_size) {
        return Err(format!("token={token} is outside the vocabulary of {}", config.vocab_size));
    }
    if !rollout.reward.is_finite() {
        return Err(format!("reward={} is not finite", rollout.reward));
    }
    if let Some(turn) = rollout.turns.iter().find(|turn| !turn.reward.is_finite()) {
        return Err(format!("reward={} of the turn at {} is not finite", turn.reward, turn.at));
    }
    let starts = rollout.turns_at();
    if starts.len() != rollout.turns.len() {
        return Err(format!("its log entries have turns={}, not {}", starts.len(), rollout.turns.len()));
    }
    let (mut logit_positions, mut turns, mut behaviour, mut on_policy, mut after) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 1);
    for (turn, at) in rollout.turns.iter().zip(starts) {
        // Of a stored turn, the lengths of its segments are known.
        let sampled = if rollout.stored.is_none() { turn.logprobs.len() } else { turn.tokens() as usize };
        let end = at + sampled;
        if at < after || end > length {
            return Err(format!("a turn of tokens {at} to {end} is not within {after} to {length}"));
        }
        if let Some(logprob) = turn.logprobs.iter().find(|logprob| !logprob.is_finite()) {
            return Err(format!("a log-probability of {logprob} in the turn at {at}"));
        }
        logit_positions.extend(at - 1..end - 1);
        turns.push(sampled);
        behaviour.extend(&turn.logprobs);
        for segment in &turn.segments {
            on_policy.extend(std::iter::repeat_n(segment.version == base, segment.tokens as usize));
        }
        on_policy.resize(logit_positions.len(), false);
        after = end;
    }
    Ok(Sample {
        length,
        tokens: rollout.tokens.clone(),
        logit_positions,
        old: behaviour.clone(),
        behaviour,
        reference: Vec::new(),
        on_policy,
        turns,
        states: Vec::new(),
        advantage: Vec::new(),
        values: Vec::new(),
        returns: Vec::new(),
        weight: Vec::new(),
        reached: Vec::new(),
        masked: false,
        kept: Vec::new(),
    })
}

/// Sums over a batch.
#[derive(Debug, Default)]
struct BatchMetrics {
    rollouts: f64,
    reward: f64,
    success: f64,
    staleness: f64,
    /// Rollouts by their staleness.
    histogram: BTreeMap<u64, f64>,
    tokens: f64,
    sampled: f64,
}

impl BatchMetrics {
    fn rollout(&mut self, rollout: &BatchRollout, batch: &Batch) {
        let staleness = batch.base.staleness(rollout.start_version);
        self.rollouts += 1.0;
        self.reward += rollout.reward;
        self.success += f64::from(u8::from(rollout.success));
        self.staleness += staleness as f64;
        *self.histogram.entry(staleness).or_default() += 1.0;
        self.tokens += rollout.length() as f64;
        self.sampled += rollout.sampled_tokens() as f64;
    }

    /// `staleness_share_N` is the share of rollouts that began N versions ago; `masked_share` that
    /// of tokens which were observed and not sampled.
    fn report(&self) -> BTreeMap<String, f64> {
        let rollouts = self.rollouts.max(1.0);
        let oldest = self.histogram.last_key_value().map_or(0, |(staleness, _)| *staleness);
        let rows = [
            ("reward", self.reward / rollouts),
            ("success", self.success / rollouts),
            ("staleness", self.staleness / rollouts),
            ("max_staleness", oldest as f64),
            ("rollouts", self.rollouts),
            ("tokens", self.tokens),
            ("sampled_tokens", self.sampled),
            ("masked_share", 1.0 - self.sampled / self.tokens.max(1.0)),
        ];
        let rows = rows.into_iter().map(|(name, value)| (name.to_owned(), value));
        let of =
            |(staleness, count): (&u64, &f64)| (format!("staleness_share_{staleness}"), count / rollouts);
        rows.chain(self.histogram.iter().map(of)).collect()
    }
}
