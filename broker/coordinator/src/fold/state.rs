//! The state that the log folds into. Ordered maps only, so that the same log gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::api::RunState;
use millrace_schemas::blob::Sha;
use millrace_schemas::limits::{MAX_ROLLOUTS_OF_ALL_RUNS, MAX_STALL_DOUBLINGS, STALL_MS};
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::{Manifest, Retention};
use millrace_schemas::scale::PoolScale;
use millrace_schemas::submit::Refusal;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, PolicyVersion, RunId, RunSpec, TaskKey, WorkerId};
use serde::{Deserialize, Serialize};

use crate::fold::books::Books;
use crate::fold::gang::{Gang, Generation, Members};
use crate::fold::rollout::{Group, Rollout};
use crate::fold::spread::Spread;
use crate::fold::stored::StoredTurns;
use crate::fold::window::Load;

/// The state of the coordinator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Position of the last event folded.
    pub seq: u64,
    /// When the server stored that event, in nanoseconds of its clock. It distinguishes two events
    /// at one position: the log may have lost one and been continued with another. 0 if unknown.
    #[serde(default)]
    pub stored_ns: u64,
    /// Epoch of the latest leader that wrote to the log. What an earlier leader writes after it is
    /// skipped.
    #[serde(default)]
    pub epoch: u64,
    /// The log's time: the last tick, in milliseconds since 1970; 0 before the first.
    pub unix_ms: u64,
    /// Events that could not be read or were meant for no known run.
    pub ignored: u64,
    /// Train workers whose heartbeats are current.
    #[serde(default)]
    pub members: Members,
    /// Pools of workers that are scaled, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub scaling: BTreeMap<String, PoolScale>,
    /// All runs that were not archived.
    pub runs: BTreeMap<RunId, Run>,
    /// Runs that were archived, and those that were refused when the log was read. Their names
    /// cannot be reused, since their versions are in the object store.
    #[serde(default)]
    pub archived: BTreeMap<RunId, Archived>,
}

/// What is kept of an archived run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// The state that it ended in.
    pub state: RunState,
    /// Why it failed or was cancelled; `None` if it finished.
    pub reason: Option<String>,
    /// Its last version.
    pub version: PolicyVersion,
    /// Steps in the run file.
    pub steps: u64,
    /// Which versions keep their files; `None` keeps all: a run that was refused, or that an older
    /// version archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

impl Archived {
    pub(crate) fn of(run: &Run) -> Self {
        let Run { state, reason, spec, .. } = run;
        Self {
            state: *state,
            reason: reason.clone(),
            version: run.version(),
            steps: spec.steps,
            retention: Some(spec.weights),
        }
    }
}

impl State {
    /// Whether a run of this name was ever submitted.
    #[must_use]
    pub fn knows(&self, run: &RunId) -> bool {
        self.runs.contains_key(run) || self.archived.contains_key(run)
    }

    /// The sum of the windows of all live runs, in rollouts.
    #[must_use]
    pub fn rollouts_at_most(&self) -> u64 {
        let live = self.runs.values().filter(|run| !run.is_closed());
        live.fold(0, |sum, run| sum.saturating_add(run.spec.rollouts_in_flight()))
    }

    /// Why a run cannot be accepted; empty if it can.
    #[must_use]
    pub fn refusals(&self, spec: &RunSpec) -> Vec<Refusal> {
        let mut refusals = spec.refusals();
        refusals.extend(spec.missing_at_submit());
        let all = self.rollouts_at_most().saturating_add(spec.rollouts_in_flight());
        if all > MAX_ROLLOUTS_OF_ALL_RUNS {
            refusals.push(Refusal {
                field: "rollout.groups_per_step".into(),
                value: spec.rollout.groups_per_step.to_string(),
                remedy: format!(
                    "with this run, all runs together could have {all} rollouts in flight, of at most \
                     {MAX_ROLLOUTS_OF_ALL_RUNS}; choose less, or wait until another run is over"
                ),
            });
        }
        refusals
    }
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The run file.
    pub spec: RunSpec,
    /// Hash of the spec.
    pub config: Sha,
    /// Its lifecycle state.
    pub state: RunState,
    /// Why it failed, was cancelled or is paused.
    pub reason: Option<String>,
    /// What a person can do about it, if it is paused.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The task whose failure paused it.
    pub broken: Option<TaskKey>,
    /// The newest committed version; `None` before version 0.
    pub policy: Option<Policy>,
    /// Hash of version 0's manifest; `None` before it.
    #[serde(default)]
    pub reference: Option<Sha>,
    /// Group numbers issued; the next group's number.
    pub next_group: u64,
    /// Training prompts issued; the next prompt's number.
    pub next_prompt: u64,
    /// Turns from which groups may start.
    #[serde(default)]
    pub stored: StoredTurns,
    /// Groups for training, playing or finished.
    pub groups: BTreeMap<u64, Group>,
    /// Finished groups in the order in which they finished.
    pub ready: Vec<u64>,
    /// Since when, in the run's time, a full batch has waited for groups that its step would make
    /// too old; `None` if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_since_ms: Option<u64>,
    /// Groups without signal that were filtered since the last step.
    pub filtered_since_step: u64,
    /// The current step; `None` between steps.
    pub training: Option<Training>,
    /// The members that make steps together.
    #[serde(default)]
    pub gang: Gang,
    /// The current evaluation. No batch is cut during it, so its version remains the newest.
    pub evaluation: Option<Evaluating>,
    /// Versions that were evaluated or are being evaluated.
    pub evaluated: BTreeSet<PolicyVersion>,
    /// When awaited tasks were last done.
    #[serde(default)]
    pub progress: Progress,
    /// Failures of rollouts, to detect that they only fail.
    #[serde(default)]
    pub failures: Failures,
    /// Exhausted tasks of the current step.
    #[serde(default, rename = "worn")]
    pub exhausted: ExhaustedStep,
    /// Counters.
    pub books: Books,
    /// The first tick after the submit, in milliseconds since 1970; 0 before it.
    pub started_unix_ms: u64,
    /// Milliseconds since then, summed from tick to tick.
    pub at_ms: u64,
    /// The run's time at its end, in milliseconds since 1970; 0 before the end.
    pub ended_unix_ms: u64,
}

/// When a run last made progress, in its own time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// When it last made progress, or when all outstanding tasks were last requeued, in
    /// milliseconds.
    pub at_ms: u64,
    /// How often outstanding tasks were requeued since the last progress. Each doubles the time to
    /// the next.
    pub repeats: u32,
    /// When it last made progress, in milliseconds.
    #[serde(default)]
    pub moved_ms: u64,
}

/// Training rollouts that failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Failures since a rollout was last finished.
    pub in_a_row: u64,
    /// Count since the last step.
    pub since_step: u64,
}

/// Dead letters of the current step that exhausted their deliveries without an outcome: the workers
/// were killed, or could not reach the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExhaustedStep {
    /// Count since the last step.
    pub in_a_row: u32,
    /// The task of the last one, and the run's time in milliseconds at which its step restarts;
    /// `None` after the restart.
    #[serde(rename = "again")]
    pub restart: Option<(TaskKey, u64)>,
}

/// The current step. The first makes version 0 and has no batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// The version that it makes.
    pub makes: PolicyVersion,
    /// Attempt of the step, from 0.
    pub attempt: u32,
    /// The workers whose shards are queued; `None` while it waits for members.
    #[serde(rename = "seats", default = "RankAssignment::anyone")]
    pub ranks: Option<RankAssignment>,
    /// The groups that it trains on, oldest first; empty for version 0.
    pub groups: Vec<(u64, Group)>,
    /// The batch as it is stored; `None` for version 0. The same for all attempts and ranks, so it
    /// is hashed once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BlobRef>,
    /// The manifest to commit, with the ranks' files and metrics; `None` until all shards are done.
    pub manifest: Option<Manifest>,
    /// Files of the ranks that are done, by rank.
    pub shards: BTreeMap<u32, Vec<FileRef>>,
}

impl Training {
    /// Whether members of a gang make it together.
    #[must_use]
    pub fn is_together(&self) -> bool {
        self.ranks.as_ref().is_some_and(|ranks| ranks.world() > 1)
    }
}

/// Which worker has which rank of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankAssignment {
    /// Number of the generation; 0 for any worker alone.
    pub gang: u64,
    /// Members by rank; empty for any worker alone.
    pub workers: Vec<WorkerId>,
}

impl RankAssignment {
    /// Any worker, alone.
    #[must_use]
    pub const fn anyone() -> Option<Self> {
        Some(Self { gang: 0, workers: Vec::new() })
    }

    /// The members of a generation. A generation of one becomes any worker.
    #[must_use]
    pub fn of(generation: &Generation) -> Self {
        let workers = generation.ranks.iter().map(|(worker, _)| worker.clone());
        match generation.ranks.len() {
            0 | 1 => Self { gang: 0, workers: Vec::new() },
            _ => Self { gang: generation.number, workers: workers.collect() },
        }
    }

    /// Number of ranks.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.workers.len().max(1) as u32
    }
}

/// The current evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluating {
    /// The version under evaluation.
    pub version: PolicyVersion,
    /// Index of the current temperature. The evaluation's temperatures are tried one after the
    /// other.
    #[serde(default)]
    pub pass: u32,
    /// One group for each prompt in play, by group number.
    pub groups: BTreeMap<u64, Group>,
    /// Fingerprint of the first observation, by group in play.
    #[serde(default)]
    pub shown: BTreeMap<u64, u64>,
    /// Counts over all prompts.
    #[serde(flatten)]
    pub whole: EvaluationCounts,
    /// The same counts by domain; empty for a run with one domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<EvaluationCounts>,
    /// Why the last prompt was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Counts of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationCounts {
    /// Rollouts that reached the goal.
    pub solved: u32,
    /// Sum of the rollouts' rewards.
    pub reward: f64,
    /// Rollouts played to the end; 0 in a snapshot of an older version, in which each prompt had
    /// one.
    #[serde(default)]
    pub rollouts: u32,
    /// What the standard error and pass@k are computed from.
    #[serde(default)]
    pub spread: Spread,
    /// Prompts played to the end.
    pub finished: u32,
    /// Prompts given up.
    pub failed: u32,
}

impl Evaluating {
    /// Applies `count` to the totals and to the domain.
    pub(crate) fn count(&mut self, domain: u32, count: impl Fn(&mut EvaluationCounts)) {
        count(&mut self.whole);
        if let Some(counts) = self.domains.get_mut(domain as usize) {
            count(counts);
        }
    }
}

impl State {
    /// Oldest position of the log, not before `first`, that a rollout in flight, in training or
    /// stored for others refers to; `None` if none does. A paused run has no tasks. When it is
    /// resumed, entries that were trimmed meanwhile are read from their segments.
    #[must_use]
    pub fn oldest_entry(&self, first: u64) -> Option<u64> {
        let works = self.runs.values().filter(|run| run.state.works());
        works.filter_map(|run| run.oldest_entry(first)).min()
    }
}

impl Run {
    /// Oldest position of the log, not before `first`, that it refers to.
    fn oldest_entry(&self, first: u64) -> Option<u64> {
        let evaluating = self.evaluation.iter().flat_map(|evaluation| evaluation.groups.values());
        let rollouts = self.groups_in_flight().chain(evaluating).flat_map(|group| &group.rollouts);
        let entries = rollouts.flat_map(Rollout::entries);
        let stored = self.stored.trajectories.iter().flat_map(|solved| &solved.trajectory);
        entries.chain(stored).map(|entry| entry.seq).filter(|seq| *seq >= first).min()
    }

    /// The run's time, in milliseconds since 1970: its start plus the time that passed since.
    #[must_use]
    pub const fn now_unix_ms(&self) -> u64 {
        self.started_unix_ms.saturating_add(self.at_ms)
    }

    /// Records progress: an awaited task is done.
    pub(crate) const fn moved(&mut self) {
        self.progress = Progress { at_ms: self.at_ms, repeats: 0, moved_ms: self.at_ms };
    }

    /// Whether the run has waited for its tasks for so long that one may have been lost. Returns
    /// true once, and then after twice as long.
    pub(crate) fn has_stalled(&mut self) -> bool {
        let Progress { at_ms, repeats, moved_ms } = self.progress;
        let patience = STALL_MS << repeats.min(MAX_STALL_DOUBLINGS);
        let stalled = self.state.works() && self.at_ms.saturating_sub(at_ms) >= patience;
        if stalled {
            self.progress = Progress { at_ms: self.at_ms, repeats: repeats.saturating_add(1), moved_ms };
        }
        stalled
    }

    /// The newest committed version; v0 before there is one.
    #[must_use]
    pub fn version(&self) -> PolicyVersion {
        self.policy.as_ref().map(|policy| policy.version).unwrap_or_default()
    }

    /// Whether no event can change it any more. Older versions failed a run that would be paused
    /// today; requeueing its step still revives such a run.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.state.is_over() && self.broken.is_none()
    }

    /// Whether this group belongs to the current evaluation.
    #[must_use]
    pub fn is_held_out(&self, group: u64) -> bool {
        self.evaluation.as_ref().is_some_and(|evaluation| evaluation.groups.contains_key(&group))
    }

    /// Groups that are playing, finished, or in training.
    pub fn groups_in_flight(&self) -> impl Iterator<Item = &Group> {
        let training = self.training.iter().flat_map(|training| &training.groups);
        self.groups.values().chain(training.map(|(_, group)| group))
    }

    /// Temperature and rollouts per prompt of the current evaluation, or of the next.
    #[must_use]
    pub fn evaluate_pass(&self) -> (f64, u32) {
        self.spec.evaluate.pass(self.evaluation.as_ref().map_or(0, |evaluation| evaluation.pass))
    }

    /// The current use of the window.
    #[must_use]
    pub fn load(&self) -> Load {
        let trained = self.training.as_ref().map_or(0, |training| training.groups.len());
        let groups = (self.groups.len() + trained) as u64;
        Load { version: self.version(), groups, trains: self.training.is_some() }
    }

    /// The group numbered `id`, for training or evaluation.
    #[must_use]
    pub fn group(&self, id: u64) -> Option<&Group> {
        let evaluating = self.evaluation.as_ref().and_then(|evaluation| evaluation.groups.get(&id));
        evaluating.or_else(|| self.groups.get(&id))
    }

    /// The group numbered `id`, and whether it is for evaluation.
    #[must_use]
    pub fn group_mut(&mut self, id: u64) -> Option<(&mut Group, bool)> {
        if let Some(evaluation) = self.evaluation.as_mut()
            && let Some(group) = evaluation.groups.get_mut(&id)
        {
            return Some((group, true));
        }
        self.groups.get_mut(&id).map(|group| (group, false))
    }
}
