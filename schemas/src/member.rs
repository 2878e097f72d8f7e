//! Signs of life of the workers that train: who could be given a place in a gang. `nats kv watch MILLRACE_WORKERS`
//! shows them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What such a worker writes under its name, as JSON in the key-value bucket `MILLRACE_WORKERS`, again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Heartbeat {
    /// The process: another one of the same name is another member.
    pub instance: String,
    /// One more with each sign: one alone may be from a process that is long gone.
    pub beat: u64,
    /// The last sign: the worker leaves.
    pub leaving: bool,
}
