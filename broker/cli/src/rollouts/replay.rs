//! Which rollouts there were, and what became of each: the log is folded once more as the
//! coordinator folds it. Of a rollout only numbers are kept, until it is chosen or not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Result, bail};
use millrace_coordinator::fold::milestone::Milestone;
use millrace_coordinator::fold::state::Run;
use millrace_coordinator::shell::journal;
use millrace_coordinator::{Command, State};
use millrace_queue::{Broker, Logged};
use millrace_schemas::brief::{StepBrief, TurnBrief};
use millrace_schemas::{Event, Outcome, OutcomeBody, PolicyVersion, RolloutId, RunId, RunSpec, TaskKey};

use super::chosen::Chosen;
use crate::term::remark;

/// Entries of the log that are read at once.
const AT_ONCE: usize = 1_024;

/// What became of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// A committed version was trained on it.
    Trained {
        /// The version that the step made.
        version: PolicyVersion,
        /// In versions.
        staleness: u64,
    },
    /// It was dropped.
    Dropped {
        /// The reason, as ledgers name it.
        reason: &'static str,
    },
    /// It was a held-out rollout, and is counted.
    Evaluated {
        /// The version under evaluation.
        version: PolicyVersion,
    },
    /// It is scored, and waits for its group or its batch.
    Waits,
}

/// A rollout by its places in the log.
#[derive(Debug, Clone)]
pub(super) struct Played {
    pub(super) id: RolloutId,
    /// Number of its domain.
    pub(super) domain: u32,
    /// Number of its prompt within domain and split.
    pub(super) prompt: u64,
    pub(super) evaluate: bool,
    pub(super) fate: Fate,
    /// Entries of the rollout that it continues, in order; empty if it starts at the beginning.
    pub(super) inherited: Vec<u64>,
    /// Entries of its own outcomes, in order.
    pub(super) entries: Vec<u64>,
    /// Versions that sampled tokens of it.
    pub(super) versions: BTreeSet<PolicyVersion>,
    /// Scores by reward; `None` where there is none. `[rewards]`
    pub(super) scores: Vec<Option<f64>>,
    /// The goal was reached.
    pub(super) success: bool,
    /// Position in the log of its last outcome.
    pub(super) last: u64,
}

impl Played {
    fn new(id: RolloutId, evaluate: bool, run: &Run) -> Self {
        let group = run.group(id.group);
        let (domain, prompt) = group.map_or((0, 0), |group| (group.domain, group.prompt));
        let start = group.and_then(|group| group.start.as_ref());
        let inherited = start.map(|start| start.trajectory.iter().map(|entry| entry.seq).collect());
        Self {
            id,
            domain,
            prompt,
            evaluate,
            fate: Fate::Waits,
            inherited: inherited.unwrap_or_default(),
            entries: Vec::new(),
            versions: BTreeSet::new(),
            scores: vec![None; run.spec.part(domain).rewards.len()],
            success: false,
            last: 0,
        }
    }

    /// Takes an outcome that the fold took.
    fn take(&mut self, seq: u64, key: TaskKey, body: &OutcomeBody) {
        match (key, body) {
            (_, OutcomeBody::Generate(done)) => self.turn(&TurnBrief::of(done)),
            (_, OutcomeBody::TurnBrief(turn)) => self.turn(turn),
            (_, OutcomeBody::EnvStep(done)) => self.success = done.success,
            (_, OutcomeBody::StepBrief(StepBrief { success, .. })) => self.success = *success,
            (TaskKey::Reward { reward, .. }, OutcomeBody::Reward(done)) => {
                if let Some(score) = self.scores.get_mut(reward as usize) {
                    *score = Some(done.score);
                }
            }
            _ => return,
        }
        self.entries.push(seq);
        self.last = seq;
    }

    fn turn(&mut self, turn: &TurnBrief) {
        self.versions.extend(turn.segments.iter().map(|segment| segment.version));
    }

    /// The weighted sum of its scores; `None` where one is missing.
    pub(super) fn reward(&self, weights: &[f64]) -> Option<f64> {
        self.scores.iter().zip(weights).try_fold(0.0, |sum, (score, weight)| Some(sum + (*score)? * weight))
    }
}

/// The run that was read, and what was chosen of it.
pub(super) struct Replayed {
    pub(super) spec: Arc<RunSpec>,
    pub(super) chosen: Vec<Played>,
}

/// Folds the log and chooses among the rollouts of `run`; without a name, of the only run.
struct Replay {
    run: Option<RunId>,
    spec: Option<Arc<RunSpec>>,
    others: BTreeSet<String>,
    state: State,
    /// Rollouts in play, and scored ones that nothing has become of yet: as many as the run's window
    /// and an evaluation have.
    live: BTreeMap<RolloutId, Played>,
    chosen: Chosen,
}

/// Reads the log, and its segments, from the beginning to its present end.
///
/// # Errors
/// The queue or the object store fails, or the log has no such run.
pub(super) async fn replay(broker: &Broker, run: Option<RunId>, chosen: Chosen) -> Result<Replayed> {
    let end = broker.queue().log_end().await?;
    let start = broker.log_start().await?;
    let mut state = State::default();
    if start > 1 && end > 0 {
        // Without its beginning, the log cannot be folded from there.
        state = journal::restore(broker).await?;
        remark(format_args!(
            "the log was trimmed: entries before {start} are in no segment of the object store. Rollouts that began \
             before entry {} are not shown",
            state.seq + 1
        ));
    }
    let run = run.or_else(|| state.runs.keys().next().cloned());
    let spec = run.as_ref().and_then(|run| state.runs.get(run)).map(|run| Arc::new(run.spec.clone()));
    let others = state.runs.keys().map(ToString::to_string).collect();
    let mut replay = Replay { run, spec, others, state, live: BTreeMap::new(), chosen };
    let mut next = replay.state.seq + 1;
    // In brief: a rollout's content is fetched if the rollout is chosen.
    let mut log = broker.follow_log(next).await?;
    while next <= end {
        let entries = log.next(AT_ONCE).await?;
        next = entries.last().map_or(next, |entry| entry.seq + 1);
        for entry in entries.into_iter().filter(|entry| entry.seq <= end) {
            replay.fold(entry);
        }
    }
    replay.end()
}

impl Replay {
    fn fold(&mut self, entry: Logged) {
        let Logged { seq, stored_ns, run, epoch, event } = entry;
        self.state.stored_ns = stored_ns;
        if !self.state.admits(seq, epoch) {
            return;
        }
        let Ok(event) = event else { return self.state.skip(seq) };
        if let Event::Submitted(spec) = &event {
            self.others.insert(spec.name.to_string());
            // Where there are several, one must be named, which is checked at the end.
            self.run.get_or_insert_with(|| spec.name.clone());
        }
        let own = self.run.as_ref().is_some_and(|own| own.as_str() == run);
        let late = self.late();
        // The fold consumes the event. Of a turn, only what the log has in brief is kept.
        let outcome = match &event {
            Event::Outcome(Outcome { key, body, .. }) if own && key.rollout().is_some() => {
                Some((*key, body.brief().unwrap_or_else(|| body.clone())))
            }
            _ => None,
        };
        let commands = self.state.advance_and_report(seq, &run, event);
        if let Some((key, body)) = outcome
            && late == self.late()
            && let Some(played) = key.rollout().and_then(|id| self.live.get_mut(&id))
        {
            played.take(seq, key, &body);
        }
        for command in commands {
            if let Command::Report { run, milestones } = command
                && self.run.as_ref() == Some(&run)
            {
                milestones.iter().for_each(|milestone| self.reached(milestone));
            }
        }
        if self.spec.is_none()
            && let Some(run) = self.run.as_ref().and_then(|run| self.state.runs.get(run))
        {
            self.spec = Some(Arc::new(run.spec.clone()));
        }
    }

    /// Outcomes of the run that the fold ignored or refused.
    fn late(&self) -> u64 {
        let run = self.run.as_ref().and_then(|run| self.state.runs.get(run));
        run.map_or(0, |run| run.books.late_outcomes + run.books.refused_outcomes)
    }

    fn reached(&mut self, milestone: &Milestone) {
        match milestone {
            Milestone::Admitted { rollout, evaluate, .. } => {
                if let Some(run) = self.run.as_ref().and_then(|run| self.state.runs.get(run)) {
                    self.live.insert(*rollout, Played::new(*rollout, *evaluate, run));
                }
            }
            Milestone::Trained { rollout, made, staleness } => {
                let fate = Fate::Trained { version: *made, staleness: *staleness };
                // A version that the log had lost may have trained on one that was dropped.
                self.chosen.change(*rollout, fate);
                self.ended(*rollout, fate);
            }
            Milestone::Dropped { rollout, reason, .. } => self.ended(*rollout, Fate::Dropped { reason }),
            Milestone::Evaluated { rollout, version, .. } => {
                self.ended(*rollout, Fate::Evaluated { version: *version });
            }
            Milestone::Cut { .. } | Milestone::Committed { .. } => {}
        }
    }

    fn ended(&mut self, id: RolloutId, fate: Fate) {
        if let (Some(played), Some(spec)) = (self.live.remove(&id), &self.spec) {
            self.chosen.consider(Played { fate, ..played }, spec);
        }
    }

    fn end(mut self) -> Result<Replayed> {
        let known = self.others.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "no run".to_owned() } else { known };
        let (Some(run), Some(spec)) = (&self.run, self.spec.take()) else {
            match &self.run {
                Some(run) => bail!("run={run} is not in the log, which has {known}; name one of these"),
                None => bail!("the log has {known}; `millrace submit RUN.toml` submits one"),
            }
        };
        if self.chosen.of_any_run() && self.others.len() > 1 {
            bail!("the log has several runs: {known}; name one, as in `millrace rollouts {run}`");
        }
        for played in std::mem::take(&mut self.live).into_values() {
            self.chosen.consider(played, &spec);
        }
        Ok(Replayed { spec, chosen: self.chosen.into_sorted() })
    }
}
