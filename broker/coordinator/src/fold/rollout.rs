//! Groups and rollouts in flight: what each has so far and what it waits for.

use millrace_schemas::env_step::TurnLimits;
use millrace_schemas::reward::TurnResult;
use millrace_schemas::submit::{Domain, RolloutSpec};
use millrace_schemas::train_shard::{BatchGroup, BatchRollout, BatchTurn, StoredTrajectory};
use millrace_schemas::{EntryRef, Fork, PolicyVersion, RolloutId, RunSpec};
use serde::{Deserialize, Serialize};

use crate::fold::calls::{Begun, Calls};

/// What a rollout waits for. At most one turn of it is ever in the queue, but for [`Phase::Calls`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// The environment's start state.
    Reset,
    /// The next turn of the policy.
    Generate,
    /// The environment's answer to the last turn.
    EnvStep,
    /// Turns of calls side by side, and steps of their environment.
    Calls,
    /// Its scores.
    Reward,
    /// Nothing: it is scored.
    Finished,
}

/// The stored turn that a group starts from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Id of the stored trajectory that it continues.
    #[serde(rename = "path")]
    pub source: u64,
    /// How many turns before the goal it starts.
    #[serde(rename = "back")]
    pub turns_from_goal: u32,
    /// Log entries of the trajectory, from the beginning to this turn. `[1 + 2·turns]`
    pub trajectory: Vec<EntryRef>,
}

/// One trajectory in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Which replacement this is, from 0.
    pub attempt: u32,
    /// How many of the replacements followed a failure; the others followed staleness.
    pub failures: u32,
    /// The current version when its tasks were stamped. It counts for staleness until the first
    /// token is sampled.
    pub stamp: PolicyVersion,
    /// The version that sampled its first token. Where turns are sampled side by side, the oldest one's, once it is over.
    pub start: Option<PolicyVersion>,
    /// The task that it waits for.
    pub phase: Phase,
    /// Log entries of its observations and turns, in order: the reset's observation, then
    /// alternately turn and observation. If it continues another rollout, that rollout's entries
    /// come first. `[1 + 2·turns]`, one fewer while it waits for the environment.
    pub trajectory: Vec<EntryRef>,
    /// Turns that do not follow the one before them, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub forks: Vec<Fork>,
    /// Its calls, where they are answered side by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Box<Calls>>,
    /// The next turn so far. Its entry is newer than those of the trajectory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Box<Begun>>,
    /// Limits of the next turn, below those of the run.
    #[serde(default, skip_serializing_if = "TurnLimits::is_none")]
    pub limits: TurnLimits,
    /// Its own turns: the versions that sampled them, and their rewards. `[turns]`
    pub turns: Vec<BatchTurn>,
    /// The environment's result of each turn. `[turns]`, or one fewer while it waits for the
    /// environment.
    pub results: Vec<TurnResult>,
    /// Turns of the rollout that it continues.
    #[serde(default)]
    pub skipped: u32,
    /// The goal was reached.
    pub success: bool,
    /// Its last turn ended at its most tokens.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Scores by reward of the run; `None` while outstanding. `[rewards]`
    pub scores: Vec<Option<f64>>,
    /// Worker microseconds spent on it.
    pub busy_us: u64,
}

impl Rollout {
    /// A rollout that has not started: it waits for a reset, or continues from `start`.
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
            forks: Vec::new(),
            calls: None,
            begun: None,
            limits: TurnLimits::default(),
            turns: Vec::new(),
            results: Vec::new(),
            success: false,
            truncated: false,
            scores: vec![None; rewards],
            busy_us: 0,
        }
    }

    /// Becomes its own replacement, which starts at `stamp` where its group starts.
    pub fn replace(&mut self, stamp: PolicyVersion, start: Option<&Start>) {
        let (attempt, failures, rewards) = (self.attempt + 1, self.failures, self.scores.len());
        *self = Self { attempt, failures, ..Self::new(stamp, rewards, start) };
    }

    /// Turns since the prompt's beginning.
    #[must_use]
    pub fn turns_taken(&self) -> u32 {
        self.skipped + self.turns.len() as u32
    }

    /// The version from which its staleness is counted.
    #[must_use]
    pub fn version(&self) -> PolicyVersion {
        self.start.unwrap_or(self.stamp)
    }

    /// The version of each turn's first token.
    pub(crate) fn first_versions(&self) -> impl Iterator<Item = PolicyVersion> {
        self.turns.iter().filter_map(|turn| turn.segments.first()).map(|segment| segment.version)
    }

    /// The version of its newest token: no later turn may be sampled by an older one.
    #[must_use]
    pub fn newest_version(&self) -> PolicyVersion {
        let last = self.turns.last().and_then(|turn| turn.segments.last());
        last.map_or(self.stamp, |segment| segment.version)
    }

    /// The part that there is of its next turn, or of the turn of the call of this number.
    pub(crate) fn begun_mut(&mut self, number: u32) -> &mut Option<Box<Begun>> {
        let mut open = self.calls.iter_mut().flat_map(|calls| &mut calls.open);
        open.find(|open| open.number == number).map_or(&mut self.begun, |open| &mut open.begun)
    }

    /// The log entries that its tasks refer to, but for turns that are begun, which are newer.
    pub fn entries(&self) -> impl Iterator<Item = &EntryRef> {
        let calls = self.calls.as_deref();
        let open = calls.into_iter().flat_map(|calls| calls.open.iter().map(|open| &open.observation));
        self.trajectory.iter().chain(calls.map(|calls| &calls.host)).chain(open)
    }

    /// Tokens of its observations and turns, without the observation after the last turn.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        let trajectory = match self.phase {
            Phase::Reset | Phase::Generate | Phase::EnvStep | Phase::Calls => &self.trajectory,
            Phase::Reward | Phase::Finished => self.up_to_last_turn(),
        };
        trajectory.iter().map(|entry| u64::from(entry.tokens)).sum()
    }

    /// Its trajectory up to the last turn. The observation after it is not trained on.
    #[must_use]
    pub fn up_to_last_turn(&self) -> &[EntryRef] {
        &self.trajectory[..self.trajectory.len() / 2 * 2]
    }

    /// The weighted sum of its scores. Outstanding scores count as 0.
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
    /// Number of the prompt within its domain and split, from 0.
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
    /// A group of this domain that has not started. It starts from `start`, if given.
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

    /// The ids of its rollouts, if it is group `id`. `[G]`
    pub fn ids(&self, id: u64) -> impl Iterator<Item = RolloutId> {
        let ids = self.rollouts.iter().zip(0..);
        ids.map(move |(rollout, index)| RolloutId { group: id, index, attempt: rollout.attempt })
    }

    /// The greatest staleness among its rollouts when trained at `version`.
    #[must_use]
    pub fn staleness(&self, version: PolicyVersion) -> u64 {
        self.rollouts.iter().map(|rollout| version.staleness(rollout.version())).max().unwrap_or(0)
    }

    /// Whether the run's filter excludes it: its rewards are equal, or their mean is too low or too
    /// high, so that comparing them gives no signal.
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

    /// The group as it goes into a batch, by reference; with the turns' `uncut_logprobs` if the run
    /// cuts unlikely tokens off.
    #[must_use]
    pub fn to_batch(&self, group: u64, domain: &Domain<'_>, uncut_logprobs: bool) -> BatchGroup {
        let (weights, most) = (domain.reward_weights(), domain.environment.max_turns());
        // Only the scores may decide success, so this is not known before the rollout is finished.
        let out_of_turns = |rollout: &Rollout| !rollout.success && most > 1 && rollout.turns_taken() >= most;
        let rollouts = self.ids(group).zip(&self.rollouts).map(|(id, rollout)| BatchRollout {
            id,
            start_version: rollout.version(),
            reward: rollout.reward(weights.iter().copied()),
            success: rollout.success,
            truncated: rollout.truncated || out_of_turns(rollout),
            tokens: Vec::new(),
            turns: rollout.turns.clone(),
            forks: rollout.forks.clone(),
            stored: Some(StoredTrajectory { entries: rollout.up_to_last_turn().to_vec(), uncut_logprobs }),
        });
        BatchGroup { group, domain: self.domain, rollouts: rollouts.collect() }
    }
}
