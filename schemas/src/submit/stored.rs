//! Rollouts that start from turns of earlier ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which groups start from a turn of an earlier rollout that reached the goal, instead of at the
/// beginning: for prompts that are too hard from the beginning. A stored rollout's first start is
/// its last turn. A start that the policy has learnt moves one turn back, and one that it never
/// solves moves one forward, until the rollout is learnt from the beginning.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoredTurns {
    /// Share of the groups that start from a stored turn, if there is one; below 1. Default 0.
    pub share: f64,
    /// Rollouts whose turns are kept; beyond it the oldest is removed. Default 64.
    pub keep: u32,
    /// A start is learnt when this share of its group reaches the goal. A group from the beginning
    /// with such a share stores nothing. Default 0.5.
    pub learnt: f64,
}

impl Default for StoredTurns {
    fn default() -> Self {
        Self { share: 0.0, keep: 64, learnt: 0.5 }
    }
}

impl StoredTurns {
    /// Whether any group starts from a stored turn.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.share > 0.0
    }
}
