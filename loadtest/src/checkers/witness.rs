//! The fate of each rollout, from an independent observer. It sees the tasks that reach the queue,
//! the log and the committed batches, and knows the definitions below. It shares nothing with the
//! fold.
//!
//! *Begun* is a rollout whose first task was put; then the earlier attempts in its place and the
//! other rollouts of its group are begun too. *Done* is decided by the first entry of the log about
//! a task. *Failed* is a rollout with a task that became a dead letter and was not done before.
//! *Stale* is a rollout whose first token is of a version too old for a later step. Where only a
//! share of a batch may be as old as the bound, it is also stale at that age while more groups than
//! the share waited.

use std::collections::{BTreeMap, BTreeSet};

use millrace_coordinator::Command;
use millrace_schemas::{Event, Outcome, OutcomeBody, PolicyVersion, RolloutId, RunId, RunSpec, TaskKey};

use super::history::History;
use super::puts::TaskPut;

/// What is known of one run.
pub(super) struct Witness<'a> {
    /// The run file, as the log has it.
    pub(super) spec: &'a RunSpec,
    /// Rollouts begun for training.
    pub(super) begun: BTreeSet<RolloutId>,
    /// The first outcome of each task.
    pub(super) done: FirstOutcomes<'a>,
    /// Rollouts of which a task is a dead letter that was not done before.
    pub(super) failed: BTreeSet<RolloutId>,
    /// Rollouts that a worker lost.
    pub(super) lost: BTreeSet<RolloutId>,
    /// Rollouts that a committed version was trained on.
    pub(super) trained: BTreeSet<RolloutId>,
    /// Groups that a committed version was trained on, each with that version.
    trained_in: BTreeMap<u64, PolicyVersion>,
    /// The newest committed version.
    pub(super) version: PolicyVersion,
}

/// The first outcome of each task of a run, with its position in the log.
pub(super) type FirstOutcomes<'a> = BTreeMap<TaskKey, (u64, &'a Outcome)>;

/// The calls that a rollout's turns answer, in the order of the turns: that of their outcomes. Where turns follow one
/// another, they have the same numbers.
pub(super) fn answered(done: &FirstOutcomes<'_>, rollout: RolloutId, turns: usize) -> Vec<u32> {
    let of_rollout = |(key, (seq, _)): (&TaskKey, &(u64, &Outcome))| match key {
        TaskKey::Generate { rollout: of, turn } if *of == rollout => Some((*seq, *turn)),
        _ => None,
    };
    let first = TaskKey::Generate { rollout, turn: 0 };
    let mut calls: Vec<(u64, u32)> = done.range(first..).map_while(of_rollout).collect();
    calls.sort_unstable();
    calls.into_iter().take(turns).map(|(_, call)| call).collect()
}

/// What decided each task of a run.
pub(super) fn first_outcomes<'a>(history: &'a History, run: &RunId) -> FirstOutcomes<'a> {
    let mut done = FirstOutcomes::new();
    for entry in history.log.iter().filter(|entry| entry.run == run.as_str()) {
        if let Some(Event::Outcome(outcome)) = &entry.event
            && outcome.body.is_final()
        {
            done.entry(outcome.key).or_insert((entry.seq, outcome));
        }
    }
    done
}

/// The tasks that were put: as they were seen at the queue, or else as the log led to them.
pub(super) fn puts(history: &History) -> Vec<TaskPut> {
    // A queue that lost its newest part took tasks of which the log that is left does not know.
    if let Some(puts) = history.puts.as_ref().filter(|_| history.losses == 0) {
        return puts.clone();
    }
    let mut puts = Vec::new();
    history.replay(|moment| {
        for command in moment.commands.into_iter().flatten() {
            if let Command::PutTask(task) = command {
                puts.push(TaskPut::from(&**task));
            }
        }
    });
    puts
}

impl<'a> Witness<'a> {
    /// The witness of a run; `None` where the log knows no such run.
    pub(super) fn of(history: &'a History, run: &RunId, puts: &[TaskPut]) -> Option<Self> {
        let entries = || history.log.iter().filter(|entry| entry.run == run.as_str());
        let spec = entries().find_map(|entry| match &entry.event {
            Some(Event::Submitted(spec)) => Some(&**spec),
            _ => None,
        })?;
        let done = first_outcomes(history, run);
        let failed = entries().filter_map(|entry| match &entry.event {
            Some(Event::DeadLetter { key, .. }) => {
                let was_done = done.get(key).is_some_and(|(seq, _)| *seq < entry.seq);
                key.rollout().filter(|_| !was_done)
            }
            _ => None,
        });
        let failed = failed.collect();
        let lost = done.iter().filter(|(_, (_, outcome))| matches!(outcome.body, OutcomeBody::Lost(_)));
        let lost = lost.filter_map(|(key, _)| key.rollout()).collect();
        let trained: BTreeSet<_> = history.trained(run).map(|(_, _, rollout)| rollout.id).collect();
        let trained_in = history.trained(run).map(|(version, _, rollout)| (rollout.id.group, version));
        let versions = history.committed.get(run).map_or(0, Vec::len) as u64;
        Some(Self {
            spec,
            begun: begun(run, spec, puts),
            done,
            failed,
            lost,
            trained,
            trained_in: trained_in.collect(),
            version: PolicyVersion(versions.saturating_sub(1)),
        })
    }

    /// Whether a rollout grew too old for a later step.
    pub(super) fn is_stale(&self, rollout: RolloutId) -> bool {
        let (bound, share) = oldest(self.spec);
        let Some(due) = self.first_version(rollout).map(|first| first.0 + bound) else { return false };
        // While `due` was the newest version, the rollout was exactly as old as the bound.
        let beyond_share = share.is_some_and(|share| due <= self.version.0 && self.waiting(due) > share);
        due < self.version.0 || beyond_share
    }

    /// The version of a rollout's first token, or of its first call where calls are side by side; `None` before it.
    fn first_version(&self, rollout: RolloutId) -> Option<PolicyVersion> {
        if is_side_by_side(self.spec) {
            let (begun, _) = self.done.get(&TaskKey::EnvStep { rollout, turn: 0 })?;
            let is_before = |(key, (seq, _)): &(&TaskKey, &(u64, &Outcome))| {
                matches!(key, TaskKey::PublishWeights { .. }) && seq < begun
            };
            // Environments are reset while the first version is made.
            let published = self.done.iter().filter(is_before).count() as u64;
            return Some(PolicyVersion(published.saturating_sub(1)));
        }
        let turns = self.done.range(TaskKey::Generate { rollout, turn: 0 }..);
        let mut turns = turns
            .take_while(|(key, _)| matches!(key, TaskKey::Generate { rollout: of, .. } if *of == rollout));
        turns.find_map(|(_, (_, outcome))| match &outcome.body {
            OutcomeBody::Generate(done) => done.segments.first().map(|first| first.version),
            _ => None,
        })
    }

    /// Groups that had begun when `version` was the newest, and that no step up to it was made of.
    fn waiting(&self, version: u64) -> u64 {
        let groups: BTreeSet<u64> = self
            .begun
            .iter()
            .filter(|rollout| self.first_version(**rollout).is_some_and(|first| first.0 <= version))
            .map(|rollout| rollout.group)
            .collect();
        groups.iter().filter(|group| self.trained_in.get(group).is_none_or(|by| by.0 > version)).count()
            as u64
    }
}

/// Whether calls of the run's environment are answered side by side.
fn is_side_by_side(spec: &RunSpec) -> bool {
    spec.environment.as_ref().is_some_and(|environment| environment.parallel_calls() > 1)
}

/// By how many versions a rollout may be older than the version that it makes a step on, and how many groups of a batch
/// may be as old as that, where not all may: ⌊frac(α)·B⌋.
pub(super) fn oldest(spec: &RunSpec) -> (u64, Option<u64>) {
    let (alpha, batch) = (spec.rollout.alpha, f64::from(spec.rollout.groups_per_step));
    let whole = alpha.floor();
    // What is meant by 0.29 of 100 is 29.
    let share = ((alpha - whole) * batch + 1e-6).floor();
    if share < 1.0 { (whole as u64, None) } else { (whole as u64 + 1, Some(share as u64)) }
}

fn begun(run: &RunId, spec: &RunSpec, puts: &[TaskPut]) -> BTreeSet<RolloutId> {
    let mut newest = BTreeMap::<(u64, u32), u32>::new();
    for put in puts.iter().filter(|put| put.run == *run && !put.evaluate) {
        let Some(rollout) = put.key.rollout() else { continue };
        for index in 0..spec.rollout.group_size {
            newest.entry((rollout.group, index)).or_insert(0);
        }
        let attempt = newest.entry((rollout.group, rollout.index)).or_insert(0);
        *attempt = rollout.attempt.max(*attempt);
    }
    let attempts = newest.into_iter().flat_map(|((group, index), newest)| {
        (0..=newest).map(move |attempt| RolloutId { group, index, attempt })
    });
    attempts.collect()
}
