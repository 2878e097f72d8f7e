//! The policy key, which workers watch. `nats kv watch MILLRACE_POLICY` shows it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::blob::Sha;
use crate::ids::TaskKey;
use crate::omit;
use crate::version::PolicyVersion;

/// The current policy of a run, as JSON in the key-value bucket `MILLRACE_POLICY` under the run's
/// name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// The newest committed version.
    pub version: PolicyVersion,
    /// Hash of its manifest.
    pub manifest: Sha,
    /// Work that started at an older version than this will not be trained on: workers drop it.
    pub floor: PolicyVersion,
    /// Attempt of the step that trains on this version: shards of an earlier attempt are void.
    #[serde(default)]
    pub attempt: u32,
    /// Partitions of the run's generate pool, from which generate workers pull; 1 for the pool
    /// itself.
    #[serde(default = "one", skip_serializing_if = "omit::is_single")]
    #[schemars(extend("default" = 1))]
    pub partitions: u32,
    /// The run is over: workers drop all of its tasks.
    pub ended: bool,
}

const fn one() -> u32 {
    1
}

impl Policy {
    /// Whether a task is of no use any more: work that started at `version` too long ago, or a
    /// share of a step that is committed or void.
    #[must_use]
    pub fn is_stale(&self, key: TaskKey, version: PolicyVersion, evaluate: bool) -> bool {
        self.ended || (!evaluate && version < self.floor) || self.is_void(key)
    }

    const fn is_void(&self, key: TaskKey) -> bool {
        match key {
            TaskKey::TrainShard { makes, attempt, .. } => {
                makes <= self.version.0 || (makes == self.version.0 + 1 && attempt < self.attempt)
            }
            TaskKey::EnvStep { .. }
            | TaskKey::Generate { .. }
            | TaskKey::Reward { .. }
            | TaskKey::PublishWeights { .. } => false,
        }
    }
}
