//! How the learning rate moves.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the learning rate goes on after it rose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    /// It stays.
    #[default]
    Constant,
    /// It comes down in a straight line.
    Linear,
    /// It comes down along half a cosine.
    Cosine,
}
