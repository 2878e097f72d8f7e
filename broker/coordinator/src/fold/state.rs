//! The state that the log folds into. Ordered maps only, so that the same log gives the same bytes.

use std::collections::{BTreeMap, BTreeSet};

use millrace_schemas::api::RunState;
use millrace_schemas::blob::Sha;
use millrace_schemas::limits::{MAX_ROLLOUTS_OF_ALL_RUNS, MAX_STALL_DOUBLINGS, STALL_MS};
use millrace_schemas::policy::Policy;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::Refusal;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, PolicyVersion, RunId, RunSpec, TaskKey, WorkerId};
use serde::{Deserialize, Serialize};

use crate::fold::books::Books;
use crate::fold::gang::{Gang, Generation, Members};
use crate::fold::rollout::Group;
use crate::fold::spread::Spread;
use crate::fold::stored::Stored;
use crate::fold::window::Load;

/// Everything that the coordinator knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Position of the last event folded.
    pub seq: u64,
    /// When the server stored that event, in nanoseconds of its clock: of two events at one position it tells
    /// which was folded. 0 where it is not known.
    #[serde(default)]
    pub stored_ns: u64,
    /// The latest leader that wrote into the log. What an earlier one writes after it is passed over.
    #[serde(default)]
    pub epoch: u64,
    /// The log's time: the last tick, in milliseconds since 1970; 0 before the first.
    pub unix_ms: u64,
    /// Events that could not be read or were meant for no known run.
    pub ignored: u64,
    /// Workers that train, as their signs of life tell.
    #[serde(default)]
    pub members: Members,
    /// All runs but those that were archived.
    pub runs: BTreeMap<RunId, Run>,
    /// Runs that were archived, and those that were refused when the log was read. Their names stay taken, since their
    /// versions are in the object store.
    #[serde(default)]
    pub archived: BTreeMap<RunId, Archived>,
}

/// What is kept of an archived run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// How it ended.
    pub state: RunState,
    /// Why, where it did not finish.
    pub reason: Option<String>,
    /// Its last version.
    pub version: PolicyVersion,
    /// Steps asked for.
    pub steps: u64,
}

impl Archived {
    pub(crate) fn of(run: &Run) -> Self {
        let Run { state, reason, spec, .. } = run;
        Self { state: *state, reason: reason.clone(), version: run.version(), steps: spec.steps }
    }
}

impl State {
    /// Whether a run of this name was ever submitted.
    #[must_use]
    pub fn knows(&self, run: &RunId) -> bool {
        self.runs.contains_key(run) || self.archived.contains_key(run)
    }

    /// Rollouts that the windows of all runs have together that are not over.
    #[must_use]
    pub fn rollouts_at_most(&self) -> u64 {
        let live = self.runs.values().filter(|run| !run.is_closed());
        live.fold(0, |sum, run| sum.saturating_add(run.spec.rollouts_in_flight()))
    }

    /// What keeps a run from being taken on.
    #[must_use]
    pub fn refusals(&self, spec: &RunSpec) -> Vec<Refusal> {
        let mut refusals = spec.refusals();
        refusals.extend(spec.not_handed_in());
        let all = self.rollouts_at_most().saturating_add(spec.rollouts_in_flight());
        if all > MAX_ROLLOUTS_OF_ALL_RUNS {
            refusals.push(Refusal {
                field: "rollout.groups_per_step".into(),
                value: spec.rollout.groups_per_step.to_string(),
                remedy: format!(
                    "with this run all runs together may have {all} rollouts in flight, of at most \
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
    /// What was asked for.
    pub spec: RunSpec,
    /// Hash of the spec.
    pub config: Sha,
    /// Where it is.
    pub state: RunState,
    /// Why it failed, was cancelled or is paused.
    pub reason: Option<String>,
    /// What to do about it, where it is paused.
    #[serde(default)]
    pub remedy: Option<String>,
    /// The task whose failure paused it.
    pub broken: Option<TaskKey>,
    /// The newest committed version; `None` before version 0.
    pub policy: Option<Policy>,
    /// Hash of version 0's manifest; `None` before it.
    #[serde(default)]
    pub reference: Option<Sha>,
    /// Group numbers given out.
    pub next_group: u64,
    /// Training prompts given out.
    pub next_prompt: u64,
    /// Turns from which groups may start.
    #[serde(default)]
    pub stored: Stored,
    /// Groups for training, playing or finished.
    pub groups: BTreeMap<u64, Group>,
    /// The finished ones among them, in the order in which they finished.
    pub ready: Vec<u64>,
    /// Groups left out since the last step for want of signal.
    pub filtered_since_step: u64,
    /// The step in the making.
    pub training: Option<Training>,
    /// Those that make steps together.
    #[serde(default)]
    pub gang: Gang,
    /// The evaluation under way. No batch is cut meanwhile, so the version stands.
    pub evaluation: Option<Evaluating>,
    /// Versions that were evaluated or are being evaluated.
    pub evaluated: BTreeSet<PolicyVersion>,
    /// Whether tasks that it waits for are done.
    #[serde(default)]
    pub progress: Progress,
    /// Whether rollouts do nothing but fail.
    #[serde(default)]
    pub failures: Failures,
    /// Whether the step in the making does nothing but wear out.
    #[serde(default)]
    pub worn: Worn,
    /// Counters.
    pub books: Books,
    /// The first tick after the submit; 0 before it.
    pub started_unix_ms: u64,
    /// Milliseconds that went by from there, from tick to tick.
    pub at_ms: u64,
    /// The run's time at its end; 0 before the end.
    pub ended_unix_ms: u64,
}

/// When a run last moved on, in its own time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// The run's time then, or when all that is outstanding was last put again.
    pub at_ms: u64,
    /// How often it was put again since it moved on: the next time takes twice as long each.
    pub repeats: u32,
    /// The run's time when it moved on.
    #[serde(default)]
    pub moved_ms: u64,
}

/// Training rollouts that failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failures {
    /// Since one was last finished.
    pub in_a_row: u64,
    /// Since the last step.
    pub since_step: u64,
}

/// Dead letters of the step in the making that nobody said anything of: its workers were killed, or had no store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worn {
    /// Since the last step.
    pub in_a_row: u32,
    /// The task of the last one, and the run's time at which its step is begun anew; `None` once it was.
    pub again: Option<(TaskKey, u64)>,
}

/// A step in the making; the first makes version 0 and has no batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// The version that it makes.
    pub makes: PolicyVersion,
    /// Which try, from 0.
    pub attempt: u32,
    /// Whose ranks' shares are put; `None` while it waits for members.
    #[serde(rename = "seats", default = "RankAssignment::anyone")]
    pub ranks: Option<RankAssignment>,
    /// What it trains on, oldest first; empty for version 0.
    pub groups: Vec<(u64, Group)>,
    /// The batch as it is stored; `None` for version 0. The same for all attempts and ranks, so it is hashed once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BlobRef>,
    /// The files that the ranks wrote, once they did, and what they measured.
    pub manifest: Option<Manifest>,
    /// Ranks that are done, with their files.
    pub shards: BTreeMap<u32, Vec<FileRef>>,
}

impl Training {
    /// Whether members of a gang make it together.
    #[must_use]
    pub fn is_together(&self) -> bool {
        self.ranks.as_ref().is_some_and(|ranks| ranks.world() > 1)
    }
}

/// Who makes a step.
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

    /// The members of a generation; one that is left alone may be any worker.
    #[must_use]
    pub fn of(generation: &Generation) -> Self {
        let workers = generation.ranks.iter().map(|(worker, _)| worker.clone());
        match generation.ranks.len() {
            0 | 1 => Self { gang: 0, workers: Vec::new() },
            _ => Self { gang: generation.number, workers: workers.collect() },
        }
    }

    /// Ranks.
    #[must_use]
    pub fn world(&self) -> u32 {
        self.workers.len().max(1) as u32
    }
}

/// An evaluation under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluating {
    /// What is evaluated.
    pub version: PolicyVersion,
    /// Which of the evaluation's temperatures, from 0; they are tried one after the other.
    #[serde(default)]
    pub pass: u32,
    /// One group for each prompt still played.
    pub groups: BTreeMap<u64, Group>,
    /// By group still played, fingerprint of what the policy saw first.
    #[serde(default)]
    pub shown: BTreeMap<u64, u64>,
    /// How it stands.
    #[serde(flatten)]
    pub whole: Tally,
    /// The same by domain; empty for a run with one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<Tally>,
    /// Why the last prompt was given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How an evaluation stands.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Tally {
    /// Rollouts that reached the goal.
    pub solved: u32,
    /// Sum of the rollouts' rewards.
    pub reward: f64,
    /// Rollouts played to the end; 0 in a state of before, where a prompt had one.
    #[serde(default)]
    pub rollouts: u32,
    /// How sure it is.
    #[serde(default)]
    pub spread: Spread,
    /// Prompts played to the end.
    pub finished: u32,
    /// Prompts given up.
    pub failed: u32,
}

impl Evaluating {
    /// Counts a prompt of a domain.
    pub(crate) fn count(&mut self, domain: u32, count: impl Fn(&mut Tally)) {
        count(&mut self.whole);
        if let Some(tally) = self.domains.get_mut(domain as usize) {
            count(tally);
        }
    }
}

impl State {
    /// Oldest position of the log that a rollout in flight, in training or stored for others refers to; `None` where none
    /// does. No task or batch to come names what stands before it.
    #[must_use]
    pub fn oldest_entry(&self) -> Option<u64> {
        self.runs.values().filter_map(Run::oldest_entry).min()
    }
}

impl Run {
    /// Oldest position of the log that it refers to; `None` once nothing can happen to it any more.
    fn oldest_entry(&self) -> Option<u64> {
        if self.is_closed() {
            return None;
        }
        let evaluating = self.evaluation.iter().flat_map(|evaluation| evaluation.groups.values());
        let rollouts = self.groups_in_flight().chain(evaluating).flat_map(|group| &group.rollouts);
        let trajectories = rollouts.map(|rollout| &rollout.trajectory);
        let stored = self.stored.paths.iter().map(|path| &path.trajectory);
        trajectories.chain(stored).flatten().map(|entry| entry.seq).min()
    }

    /// The run's time, in milliseconds since 1970: when it began, and what went by since.
    #[must_use]
    pub const fn now_unix_ms(&self) -> u64 {
        self.started_unix_ms.saturating_add(self.at_ms)
    }

    /// Something that it waited for came.
    pub(crate) const fn moved(&mut self) {
        self.progress = Progress { at_ms: self.at_ms, repeats: 0, moved_ms: self.at_ms };
    }

    /// Whether nothing that it waits for came for so long that a task may have been lost. Says so once, and again after
    /// twice as long.
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

    /// Whether nothing can happen to it any more. Versions before this one let a run fail that is paused today; requeueing
    /// its step still revives such a run.
    #[must_use]
    pub const fn is_closed(&self) -> bool {
        self.state.is_over() && self.broken.is_none()
    }

    /// Whether this group is of the evaluation under way.
    #[must_use]
    pub fn is_held_out(&self, group: u64) -> bool {
        self.evaluation.as_ref().is_some_and(|evaluation| evaluation.groups.contains_key(&group))
    }

    /// Groups that play, are finished, or are in training.
    pub fn groups_in_flight(&self) -> impl Iterator<Item = &Group> {
        let training = self.training.iter().flat_map(|training| &training.groups);
        self.groups.values().chain(training.map(|(_, group)| group))
    }

    /// Temperature and rollouts of each prompt of the evaluation under way, or of the next.
    #[must_use]
    pub fn evaluate_pass(&self) -> (f64, u32) {
        self.spec.evaluate.pass(self.evaluation.as_ref().map_or(0, |evaluation| evaluation.pass))
    }

    /// What uses up the window.
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
