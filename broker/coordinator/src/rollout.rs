//! Groups and rollouts in flight: what each has so far and what it waits for.

use millrace_schemas::env_step::{Settings, Utterance};
use millrace_schemas::reward::TurnResult;
use millrace_schemas::submit::{Domain, RolloutSpec};
use millrace_schemas::train_shard::{BatchGroup, BatchRollout, BatchTurn};
use millrace_schemas::{PolicyVersion, RolloutId, RunSpec};
use serde::{Deserialize, Serialize};

use crate::stored::{Moment, Start, Way};

/// What a rollout waits for. At most one turn of it is ever in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The environment's start state.
    Reset,
    /// The next turn of the policy.
    Generate,
    /// The environment's answer to the last turn.
    EnvStep,
    /// Its scores.
    Reward,
    /// Nothing: it is scored.
    Finished,
}

/// One trajectory in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Which replacement this is, from 0.
    pub attempt: u32,
    /// How many of the replacements were for failures (and not for staleness).
    pub failures: u32,
    /// The current version when its tasks were stamped; counts until the first token is there.
    pub stamp: PolicyVersion,
    /// The version that sampled its first token.
    pub start: Option<PolicyVersion>,
    /// What it waits for.
    pub phase: Phase,
    /// Observations and turns so far. `[T]`
    pub tokens: Vec<u32>,
    /// The sampled stretches of `tokens`. `[turns]`
    pub turns: Vec<BatchTurn>,
    /// What the environment said to each turn. `[turns]`, or one fewer while it waits for the answer.
    pub results: Vec<TurnResult>,
    /// What was said so far, where a reward of the run reads it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conversation: Vec<Utterance>,
    /// What the environment tells rewards of the prompt.
    #[serde(default, skip_serializing_if = "Settings::is_empty")]
    pub row: Settings,
    /// Turns that were taken before it began, by another.
    #[serde(default)]
    pub skipped: u32,
    /// Before each turn, where later rollouts may start from one. `[skipped + turns]`, and one more before a turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moments: Vec<Moment>,
    /// The environment's state, as it gave it.
    #[serde(with = "serde_bytes_vec")]
    pub state: Vec<u8>,
    /// The goal was reached.
    pub success: bool,
    /// Its last turn ended at its most tokens, or it took its most turns without reaching the goal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Scores by reward of the run; `None` while waiting.
    pub scores: Vec<Option<f64>>,
    /// Worker microseconds spent on it.
    pub busy_us: u64,
}

/// Bytes as MessagePack's own kind rather than as a list of numbers.
pub(crate) mod serde_bytes_vec {
    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(bytes: &[u8], s: S) -> Result<S::Ok, S::Error> {
        s.serialize_bytes(bytes)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<u8>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Vec<u8>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
                Ok(bytes.to_vec())
            }
        }
        d.deserialize_bytes(Bytes)
    }
}

impl Rollout {
    /// A rollout that has not begun, to be reset, or to go on from `start`.
    #[must_use]
    pub fn new(stamp: PolicyVersion, rewards: usize, start: Option<&Start>) -> Self {
        let phase = if start.is_some() { Phase::Generate } else { Phase::Reset };
        let Way { row, tokens, conversation, moments } =
            start.map(|start| start.way.clone()).unwrap_or_default();
        Self {
            attempt: 0,
            failures: 0,
            stamp,
            start: None,
            phase,
            tokens,
            turns: Vec::new(),
            results: Vec::new(),
            conversation,
            row,
            skipped: moments.len().saturating_sub(1) as u32,
            state: moments.last().map(|moment| moment.state.clone()).unwrap_or_default(),
            moments,
            success: false,
            truncated: false,
            scores: vec![None; rewards],
            busy_us: 0,
        }
    }

    /// Begins anew at `stamp` as the next attempt, where its group starts.
    pub fn replace(&mut self, stamp: PolicyVersion, start: Option<&Start>) {
        let (attempt, failures, rewards) = (self.attempt + 1, self.failures, self.scores.len());
        *self = Self { attempt, failures, ..Self::new(stamp, rewards, start) };
    }

    /// Turns since the prompt's beginning.
    #[must_use]
    pub fn turns_taken(&self) -> u32 {
        self.skipped + self.turns.len() as u32
    }

    /// The version that its staleness is counted from.
    #[must_use]
    pub fn version(&self) -> PolicyVersion {
        self.start.unwrap_or(self.stamp)
    }

    /// The version of its newest token: no later turn may be sampled by an older one.
    #[must_use]
    pub fn newest_version(&self) -> PolicyVersion {
        let last = self.turns.last().and_then(|turn| turn.segments.last());
        last.map_or(self.stamp, |segment| segment.version)
    }

    /// The last turn's tokens.
    #[must_use]
    pub fn last_turn(&self) -> &[u32] {
        self.turns.last().map_or(&[], |turn| {
            let at = turn.at as usize;
            &self.tokens[at..at + turn.logprobs.len()]
        })
    }

    /// The weighted sum of its scores; 0 before all are there.
    #[must_use]
    pub fn reward(&self, weights: impl Iterator<Item = f64>) -> f64 {
        self.scores.iter().zip(weights).map(|(score, weight)| score.unwrap_or(0.0) * weight).sum()
    }
}

/// Rollouts of one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Number of its domain; 0 where the run has one.
    #[serde(default)]
    pub domain: u32,
    /// Counts prompts of its domain and split from 0.
    pub prompt: u64,
    /// Where its rollouts start; `None` for the beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<Start>,
    /// Its rollouts. `[G]`
    pub rollouts: Vec<Rollout>,
    /// How many of them are not finished.
    pub playing: u32,
}

impl Group {
    /// A group of this domain that has not begun, or goes on from `start`.
    #[must_use]
    pub fn new(
        domain: &Domain<'_>,
        prompt: u64,
        start: Option<Start>,
        size: u32,
        stamp: PolicyVersion,
    ) -> Self {
        let rollout = Rollout::new(stamp, domain.rewards.len(), start.as_ref());
        let rollouts = vec![rollout; size as usize];
        Self { domain: domain.number, prompt, start, rollouts, playing: size }
    }

    /// The greatest staleness among its rollouts when trained at `version`.
    #[must_use]
    pub fn staleness(&self, version: PolicyVersion) -> u64 {
        self.rollouts.iter().map(|rollout| version.staleness(rollout.version())).max().unwrap_or(0)
    }

    /// Whether its rewards are equal or all too low or too high, as its run has it, so that comparing them says nothing.
    #[must_use]
    pub fn is_without_signal(&self, spec: &RunSpec) -> bool {
        let RolloutSpec { filter_deviation, filter_means, .. } = &spec.rollout;
        let weights = spec.part(self.domain).reward_weights();
        let rewards = || self.rollouts.iter().map(|rollout| rollout.reward(weights.iter().copied()));
        let of_all = |sum: f64| sum / self.rollouts.len().max(1) as f64;
        let mean = of_all(rewards().sum());
        let deviation = of_all(rewards().map(|reward| (reward - mean).powi(2)).sum()).sqrt();
        let is_beyond = |[low, high]: [f64; 2]| mean <= low || mean >= high;
        deviation <= *filter_deviation || filter_means.is_some_and(is_beyond)
    }

    /// The group as it is trained on.
    #[must_use]
    pub fn to_batch(&self, group: u64, weights: &[f64]) -> BatchGroup {
        let rollouts = self.rollouts.iter().zip(0..).map(|(rollout, index)| BatchRollout {
            id: RolloutId { group, index, attempt: rollout.attempt },
            start_version: rollout.version(),
            reward: rollout.reward(weights.iter().copied()),
            success: rollout.success,
            truncated: rollout.truncated,
            tokens: rollout.tokens.clone(),
            turns: rollout.turns.clone(),
        });
        BatchGroup { group, domain: self.domain, rollouts: rollouts.collect() }
    }
}
