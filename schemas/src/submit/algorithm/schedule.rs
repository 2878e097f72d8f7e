//! Learning-rate schedules.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The learning rate after warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// Constant.
    #[default]
    Constant,
    /// Linear decay.
    Linear,
    /// Cosine decay.
    Cosine,
}
