//! The critic, which expects what a rollout will still be rewarded with.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the critic of `advantage = "gae"` looks ahead and learns. It reads the policy's own last layer, and each
/// version keeps it in `critic.safetensors`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Critic {
    /// What a token's return counts in the token before. Default 1.
    pub discount: f64,
    /// How far ahead what really came counts rather than what the critic expects: 0 for one token, 1 for to the end.
    /// Default 0.95.
    pub lambda: f64,
    /// What the critic's loss weighs beside the policy's. Default 0.5.
    pub coefficient: f64,
    /// How far a value moves in a step before its loss is held; 0 for no bound. Default 0.2.
    pub clip: f64,
}

impl Default for Critic {
    fn default() -> Self {
        Self { discount: 1.0, lambda: 0.95, coefficient: 0.5, clip: 0.2 }
    }
}
