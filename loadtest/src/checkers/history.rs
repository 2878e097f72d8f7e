//! What is known of a run from outside once it is over: the log, what is committed, what is left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millrace_coordinator::fold::command::Commands;
use millrace_coordinator::fold::state::{Run, State};
use millrace_coordinator::shell::audit::StoredVersion;
use millrace_queue::DeadLetter;
use millrace_schemas::policy::Policy;
use millrace_schemas::train_shard::{BatchGroup, BatchRollout};
use millrace_schemas::{Event, PolicyVersion, RunId, Stage};

use super::objects_stand::ObjectsSeen;
use super::puts::TaskPut;
use super::snapshots::SnapshotSeen;

/// An entry of the log.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Position, from 1, without gaps.
    pub seq: u64,
    /// The run token of its subject.
    pub run: String,
    /// The epoch of the leader that wrote it.
    pub epoch: Option<u64>,
    /// The event; `None` where its bytes are none.
    pub event: Option<Event>,
}

/// A value that a policy key had.
#[derive(Debug, Clone)]
pub struct PolicySeen {
    /// The run.
    pub run: RunId,
    /// The value.
    pub policy: Policy,
    /// Counts the times that the queue lost its newest part before. Keys may go back there and nowhere else.
    pub epoch: u64,
}

/// When a run ended, counted from the end of the last fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// The run.
    pub run: RunId,
    /// How long it took; `None` where it did not end.
    pub took: Option<Duration>,
    /// How long it may take.
    pub most: Duration,
}

/// What a run left behind.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The log, from its first entry.
    pub log: Vec<Entry>,
    /// What the log folds into.
    pub state: State,
    /// The versions in the object store, by run, from v0; an unreadable version has its error.
    pub committed: BTreeMap<RunId, Vec<Result<StoredVersion, String>>>,
    /// Manifests beyond the first gap, which nothing may have.
    pub strays: Vec<String>,
    /// Tasks left in the queue by stage.
    pub queued: BTreeMap<Stage, u64>,
    /// Dead letters left.
    pub dead: Vec<DeadLetter>,
    /// Values of the policy keys in the order in which they were seen; may have gaps.
    pub policies: Vec<PolicySeen>,
    /// The most tasks that were queued at once, where that was watched.
    pub peak_queued: Option<u64>,
    /// Tasks that reached the queue, each once, where that was watched.
    pub puts: Option<Vec<TaskPut>>,
    /// Snapshots that were named, in the order in which they were seen; may have gaps.
    pub snapshots: Vec<SnapshotSeen>,
    /// How often the queue lost its newest part.
    pub losses: u64,
    /// The findings about the whole object store, if it was read.
    pub objects: ObjectsSeen,
    /// Runs on which a fault was planted that needs a repair, where that is known.
    pub planted: Option<BTreeSet<RunId>>,
    /// Coordinators that would have acted though another had the lease, where that was watched.
    pub would_act: Vec<String>,
    /// When the runs ended, if it was recorded.
    pub ends: Vec<Ended>,
}

impl History {
    /// Folds the log once more; `look` sees the state before each entry and after it.
    pub fn replay(&self, mut look: impl FnMut(Moment<'_>)) {
        let mut state = State::default();
        for entry in &self.log {
            look(Moment { entry, state: &state, commands: None });
            let commands = advance(&mut state, entry);
            look(Moment { entry, state: &state, commands: Some(&commands) });
        }
    }

    /// The rollouts that committed versions were trained on, by run, with the version made.
    pub fn trained<'a>(
        &'a self,
        run: &RunId,
    ) -> impl Iterator<Item = (PolicyVersion, &'a BatchGroup, &'a BatchRollout)> + use<'a> {
        let versions =
            self.committed.get(run).into_iter().flatten().filter_map(|stored| stored.as_ref().ok());
        versions.flat_map(|stored| {
            let groups = stored.batch.iter().flat_map(|batch| &batch.groups);
            groups.flat_map(move |group| {
                group.rollouts.iter().map(move |rollout| (stored.manifest.version, group, rollout))
            })
        })
    }

    /// Runs by name.
    pub fn runs(&self) -> impl Iterator<Item = (&RunId, &Run)> {
        self.state.runs.iter()
    }
}

/// A moment of the fold: before an entry (no commands) or after it.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    /// The entry.
    pub entry: &'a Entry,
    /// The state.
    pub state: &'a State,
    /// What the entry led to; `None` before it.
    pub commands: Option<&'a Commands>,
}

impl<'a> Moment<'a> {
    /// The run that the entry is about, if it is known.
    #[must_use]
    pub fn run(&self) -> Option<&'a Run> {
        self.state.runs.get(&self.entry.run.parse::<RunId>().ok()?)
    }
}

/// What a log folds into.
#[must_use]
pub fn folded(log: &[Entry]) -> State {
    let mut state = State::default();
    for entry in log {
        advance(&mut state, entry);
    }
    state
}

/// Folds one entry.
pub fn advance(state: &mut State, entry: &Entry) -> Commands {
    if entry.seq > state.seq && !state.admits(entry.seq, entry.epoch) {
        return Commands::new();
    }
    match &entry.event {
        Some(event) => state.advance(entry.seq, &entry.run, event.clone()),
        None => {
            state.skip(entry.seq);
            Commands::new()
        }
    }
}
