//! What the fold asks the shell to do. Names and ids follow from the state, so that executing a
//! command twice is harmless.

use bytes::Bytes;
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, PoolName, RunId, Stage, Task};

use crate::fold::milestone::Milestone;

/// A side effect. Commands of one run are executed in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Create the consumers that tasks need.
    EnsurePools {
        /// The run that owns the tasks; `None` for members of gangs, which make steps of any run.
        run: Option<RunId>,
        /// Stage and pool of each consumer.
        pools: Vec<(Stage, PoolName)>,
    },
    /// Remove the consumers of pools that nobody pulls from any more.
    RemovePools(Vec<(Stage, PoolName)>),
    /// Create the consumers of a stage whose pullers are served by pull priority.
    EnsurePartitions {
        /// The run that owns the tasks.
        run: RunId,
        /// The stage whose queue is partitioned.
        stage: Stage,
        /// The pool of each partition.
        pools: Vec<PoolName>,
    },
    /// Store a blob of a run; its name is its hash.
    PutBlob {
        /// The run.
        run: RunId,
        /// The content.
        content: Bytes,
    },
    /// Queue a task, unless it is queued.
    PutTask(Box<Task>),
    /// Drop queued tasks.
    Purge {
        /// The run that owns the tasks.
        run: RunId,
        /// The stage of the tasks.
        stage: Stage,
        /// Subject filter that the tasks match.
        filter: String,
    },
    /// If this version is committed in the object store, append it to the log.
    Adopt {
        /// The run.
        run: RunId,
        /// The version after the newest that the log knows.
        version: PolicyVersion,
    },
    /// Write the run's policy key.
    SetPolicy {
        /// The run.
        run: RunId,
        /// The new value of the key.
        policy: Policy,
    },
    /// Publish a notice.
    Notice(Box<Notice>),
    /// Report what happened to rollouts and versions. It follows from the event, and is not repeated
    /// with outstanding commands.
    Report {
        /// The run.
        run: RunId,
        /// In the order in which they happened; not empty.
        milestones: Vec<Milestone>,
    },
}

impl Command {
    /// The run that it is for; `None` if it is for none in particular.
    #[must_use]
    pub fn run(&self) -> Option<&RunId> {
        match self {
            Self::EnsurePools { run, .. } => run.as_ref(),
            Self::RemovePools(_) => None,
            Self::PutTask(task) => Some(&task.run),
            Self::Notice(notice) => notice.run(),
            Self::EnsurePartitions { run, .. }
            | Self::PutBlob { run, .. }
            | Self::Purge { run, .. }
            | Self::Adopt { run, .. }
            | Self::SetPolicy { run, .. }
            | Self::Report { run, .. } => Some(run),
        }
    }
}

/// Commands in the order in which they are to be executed.
pub type Commands = Vec<Command>;
