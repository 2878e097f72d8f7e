//! Groups and rollouts in flight: what each has so far and what it waits for.

use millrace_schemas::reward::TurnResult;
use millrace_schemas::submit::{Domain, RolloutSpec};
use millrace_schemas::train_shard::{BatchGroup, BatchRollout, BatchTurn, StoredTrajectory};
use millrace_schemas::{EntryRef, PolicyVersion, RolloutId, RunSpec};
use serde::{Deserialize, Serialize};

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

/// Where a group starts that does not start at the beginning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// The stored trajectory that it goes on from.
    pub path: u64,
    /// How many turns before the goal.
    pub back: u32,
    /// Where it is stored, from the beginning until there. `[1 + 2·turns]`
    pub trajectory: Vec<EntryRef>,
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
    /// Where its observations and turns are stored, in order: what the reset showed, then turn and answer in turn. Those of
    /// another rollout come first where it goes on from one. `[1 + 2·turns]`, one fewer while it waits for an answer.
    pub trajectory: Vec<EntryRef>,
    /// Its own turns: who sampled them and what they brought. `[turns]`
    pub turns: Vec<BatchTurn>,
    /// What the environment said to each turn. `[turns]`, or one fewer while it waits for the answer.
    pub results: Vec<TurnResult>,
    /// Turns that were taken before it began, by another.
    #[serde(default)]
    pub skipped: u32,
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

impl Rollout {
    /// A rollout that has not begun, to be reset, or to go on from `start`.
    #[must_use]
    pub fn new(stamp: PolicyVersion, rewards: usize, start: Option<&Start>) -> Self {
        let phase = if start.is_some() { Phase::Generate } else { Phase::Reset };
        let trajectory = start.map(|start| start.trajectory.clone()).unwrap_or_default();
        Self {
            attempt: 0,
            failures: 0,
            stamp,
            start: None,
            phase,
            skipped: (trajectory.len() / 2) as u32,
            trajectory,
            turns: Vec::new(),
            results: Vec::new(),
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

    /// Tokens of its observations and turns; what is seen after the last turn is not kept.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let trajectory = match self.phase {
            Phase::Reset | Phase::Generate | Phase::EnvStep => &self.trajectory,
            Phase::Reward | Phase::Finished => self.up_to_last_turn(),
        };
        trajectory.iter().map(|entry| u64::from(entry.tokens)).sum()
    }

    /// Its trajectory up to the last turn: what follows that is not trained on.
    #[must_use]
    pub fn up_to_last_turn(&self) -> &[EntryRef] {
        &self.trajectory[..self.trajectory.len() / 2 * 2]
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

    /// The group as it is trained on, by reference; with the turns' `uncut_logprobs` where unlikely tokens were cut off.
    #[must_use]
    pub fn to_batch(&self, group: u64, weights: &[f64], uncut_logprobs: bool) -> BatchGroup {
        let rollouts = self.rollouts.iter().zip(0..).map(|(rollout, index)| BatchRollout {
            id: RolloutId { group, index, attempt: rollout.attempt },
            start_version: rollout.version(),
            reward: rollout.reward(weights.iter().copied()),
            success: rollout.success,
            truncated: rollout.truncated,
            tokens: Vec::new(),
            turns: rollout.turns.clone(),
            stored: Some(StoredTrajectory { entries: rollout.up_to_last_turn().to_vec(), uncut_logprobs }),
        });
        BatchGroup { group, domain: self.domain, rollouts: rollouts.collect() }
    }
}
