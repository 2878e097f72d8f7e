//! A batch's rollouts as rows to train on, validated.

use std::collections::BTreeMap;
use std::ops::Range;

use millrace_policy::PolicyError;
use millrace_schemas::PolicyVersion;
use millrace_schemas::train_shard::{Batch, BatchRollout};

use super::per_token::{Row, Sampled};
use crate::decoder::Config;

/// All rollouts of a batch.
#[derive(Debug)]
pub(super) struct Samples {
    /// In the batch's order.
    pub(super) rows: Vec<Row<Sampled>>,
    /// Divides the logits; above 0.
    pub(super) temperature: f64,
    /// Only tokens below this were drawn; at most the vocabulary.
    pub(super) below: i64,
    /// Metrics of the batch that need no model.
    pub(super) metrics: BTreeMap<String, f64>,
}

impl Samples {
    /// Reads a batch.
    ///
    /// # Errors
    /// A rollout is malformed or not of this model: no worker can train on it.
    pub(super) fn of(batch: &Batch, config: &Config) -> Result<Self, PolicyError> {
        let mut rows = Vec::new();
        let mut step_metrics = BatchMetrics::default();
        for rollout in batch.groups.iter().flat_map(|group| &group.rollouts) {
            let refuse = |why: String| PolicyError::Impossible(format!("rollout={}: {why}", rollout.id));
            rows.push(row(rollout, config, batch.base).map_err(refuse)?);
            step_metrics.rollout(rollout, batch);
        }
        if rows.iter().all(|row| row.sampled() == 0) {
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

/// The tokens that were sampled, in order; the ranges were checked by [`row`].
fn sampled(rollout: &BatchRollout) -> impl Iterator<Item = u32> {
    rollout.turns.iter().flat_map(|turn| {
        let at = turn.at as usize;
        rollout.tokens[at..at + turn.logprobs.len()].iter().copied()
    })
}

fn row(rollout: &BatchRollout, config: &Config, base: PolicyVersion) -> Result<Row<Sampled>, String> {
    let (length, most) = (rollout.length(), config.context);
    let Some(sequences) = rollout.sequences() else {
        return Err(format!("forks={:?} are not of its turns={}", rollout.forks, rollout.turns.len()));
    };
    let longest = sequences.iter().map(|sequence| sequence.shared() + sequence.own.len()).max();
    if let Some(longest) = longest.filter(|longest| *longest > most) {
        return Err(format!("tokens={longest} pass the model's {most}"));
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
    let spans = rollout.spans();
    if spans.len() != rollout.turns.len() {
        return Err(format!("its log entries have turns={}, not {}", spans.len(), rollout.turns.len()));
    }
    let (mut logit_positions, mut turns, mut behaviour, mut on_policy, mut after) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 1);
    for (turn, Range { start: at, end }) in rollout.turns.iter().zip(spans) {
        if at < after || end > length {
            return Err(format!("a turn of tokens {at} to {end} is not within {after} to {length}"));
        }
        if let Some(logprob) = turn.logprobs.iter().find(|logprob| !logprob.is_finite()) {
            return Err(format!("a log-probability of {logprob} in the turn at {at}"));
        }
        logit_positions.extend(at - 1..end - 1);
        turns.push(end - at);
        behaviour.extend(&turn.logprobs);
        for segment in &turn.segments {
            let on = f32::from(u8::from(segment.version == base));
            on_policy.extend(std::iter::repeat_n(on, segment.tokens as usize));
        }
        on_policy.resize(logit_positions.len(), 0.0);
        after = end;
    }
    Ok(Row {
        length,
        tokens: rollout.tokens.clone(),
        sequences,
        logit_positions,
        turns,
        values: Sampled { behaviour, on_policy },
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
