//! Rollouts that start from turns of earlier ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which groups start from a turn of an earlier rollout that reached the goal, instead of at the beginning: for prompts that
/// are too hard from there. The first start of a stored rollout is its last turn; each start that the policy has learnt
/// moves one turn back, each that it never solves one forward, until it is learnt from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoredTurns {
    /// Share of the groups that start so, once there is a rollout to start from; less than 1. Default 0.
    pub share: f64,
    /// Rollouts whose turns are kept; then the oldest makes room. Default 64.
    pub keep: u32,
    /// A start is learnt when this share of its group reaches the goal; of a group at the beginning that has as many,
    /// nothing is stored. Default 0.5.
    pub learnt: f64,
}

impl Default for StoredTurns {
    fn default() -> Self {
        Self { share: 0.0, keep: 64, learnt: 0.5 }
    }
}

impl StoredTurns {
    /// Whether any group starts so.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.share > 0.0
    }
}
