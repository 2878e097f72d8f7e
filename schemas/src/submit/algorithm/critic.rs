//! The critic, which estimates the remaining return of a rollout.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The critic of `advantage = "gae"`. Its input is the policy's last layer, and each version has it
/// in `critic.safetensors`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Critic {
    /// γ, the discount per token. Default 1.
    pub discount: f64,
    /// λ of GAE: 0 relies on the critic after one token, 1 uses the actual return to the end.
    /// Default 0.95.
    pub lambda: f64,
    /// Weight of the critic's loss beside the policy's. Default 0.5.
    pub coefficient: f64,
    /// Value clipping: how far a value may move in a step before its loss is clipped; 0 for no
    /// bound. Default 0.2.
    pub clip: f64,
}

impl Default for Critic {
    fn default() -> Self {
        Self { discount: 1.0, lambda: 0.95, coefficient: 0.5, clip: 0.2 }
    }
}
