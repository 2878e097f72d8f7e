//! What the fold asks of the world. Names and ids follow from the state, so that doing a command twice is
//! harmless.

use bytes::Bytes;
use millrace_schemas::notice::Notice;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, PoolName, RunId, Stage, Task};

/// One thing to be done, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// Make the consumers that a run's tasks need.
    EnsurePools(Vec<(Stage, PoolName)>),
    /// Remove the consumers of pools that nobody pulls from any more.
    RemovePools(Vec<(Stage, PoolName)>),
    /// Make the consumers of a stage whose pullers are served by rank.
    EnsurePartitions(Stage, Vec<PoolName>),
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

/// Where the fold puts its commands.
pub type Commands = Vec<Command>;
