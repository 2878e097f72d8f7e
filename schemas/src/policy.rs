//! The policy key: what workers watch. `nats kv watch MILLRACE_POLICY` shows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blob::Sha;
use crate::version::PolicyVersion;

/// The current policy of a run, as JSON in the key-value bucket `MILLRACE_POLICY` under the run's name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// The newest committed version.
    pub version: PolicyVersion,
    /// Hash of its manifest.
    pub manifest: Sha,
    /// Work that started below this version will not be trained on: workers drop it.
    pub floor: PolicyVersion,
    /// The run takes no more work: workers drop all of it.
    pub ended: bool,
}

impl Policy {
    /// Whether work that started at `version` is of no use any more.
    #[must_use]
    pub fn is_stale(&self, version: PolicyVersion, evaluate: bool) -> bool {
        self.ended || (!evaluate && version < self.floor)
    }
}
