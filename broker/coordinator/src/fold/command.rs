//! What the fold asks of the world. Names and ids follow from the state, so that doing a command twice is
//! harmless.

use bytes::Bytes;
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, PoolName, RunId, Stage, Task};

/// One thing to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Make the consumers that tasks need.
    EnsurePools {
        /// Whose tasks; `None` for members of gangs, which make steps of any run.
        run: Option<RunId>,
        /// Stages and pools.
        pools: Vec<(Stage, PoolName)>,
    },
    /// Remove the consumers of pools that nobody pulls from any more.
    RemovePools(Vec<(Stage, PoolName)>),
    /// Make the consumers of a stage whose pullers are served by rank.
    EnsurePartitions {
        /// Whose tasks.
        run: RunId,
        /// The stage.
        stage: Stage,
        /// Its partitions.
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
        /// Whose tasks.
        run: RunId,
        /// Of which stage.
        stage: Stage,
        /// Whose subjects match this.
        filter: String,
    },
    /// Look at the version that stands in the object store, and bring it into the log.
    Adopt {
        /// The run.
        run: RunId,
        /// The version.
        version: PolicyVersion,
    },
    /// Make a policy the current one.
    SetPolicy {
        /// The run.
        run: RunId,
        /// The policy.
        policy: Policy,
    },
    /// Tell whoever listens.
    Notice(Box<Notice>),
}

impl Command {
    /// The run that it is for; `None` for all.
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
            | Self::SetPolicy { run, .. } => Some(run),
        }
    }
}

/// Where the fold puts its commands.
pub type Commands = Vec<Command>;
