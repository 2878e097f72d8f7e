//! Heartbeats of train workers, which can be assigned ranks in a gang. `nats kv watch
//! MILLRACE_WORKERS` shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The heartbeat that a train worker writes periodically under its name, as JSON in the key-value
/// bucket `MILLRACE_WORKERS`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// Id of the process: another process of the same name is another member.
    pub instance: String,
    /// Incremented with each heartbeat. A single heartbeat may be from a process that is long gone.
    pub beat: u64,
    /// This is the last heartbeat: the worker leaves.
    pub leaving: bool,
}
