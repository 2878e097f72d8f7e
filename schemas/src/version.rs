//! Policy versions and the staleness counted from them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Counts train steps: v0 is the initial model, the step that trains on v makes v+1.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct PolicyVersion(pub u64);

impl PolicyVersion {
    /// The version that the step on this one makes.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The staleness, in versions, of a rollout that started at `start` in a step that trains on
    /// `self`.
    #[must_use]
    pub const fn staleness(self, start: Self) -> u64 {
        self.0.saturating_sub(start.0)
    }

    /// The oldest start version that may still be trained on at `self` under a bound of
    /// `max_staleness`.
    #[must_use]
    pub const fn floor(self, max_staleness: u64) -> Self {
        Self(self.0.saturating_sub(max_staleness))
    }
}

impl fmt::Display for PolicyVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}
