//! Why an engine or a trainer failed, and what may be done about it.

use crate::decoder::ConfigError;
use crate::directory::Broken;
use crate::gang::GangError;

/// Why a request or a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A retry may succeed: memory was short, a device was lost.
    #[error("{0}")]
    Temporary(String),
    /// No worker can compute it: a token outside the vocabulary, a context too long, a loss that is
    /// not finite.
    #[error("{0}")]
    Impossible(String),
    /// This build cannot compute it; another worker of the pool may.
    #[error("{0}")]
    Unsupported(String),
    /// The gang lost a member, or this member must leave. The step left no trace. The next gang
    /// redoes it.
    #[error("{0}")]
    Void(String),
}

impl From<GangError> for PolicyError {
    fn from(error: GangError) -> Self {
        Self::Void(error.to_string())
    }
}

impl From<ConfigError> for PolicyError {
    fn from(error: ConfigError) -> Self {
        Self::Impossible(error.to_string())
    }
}

impl From<Broken> for PolicyError {
    fn from(broken: Broken) -> Self {
        let reason = broken.to_string();
        // Another worker may be on the machine that has it.
        if broken.absent { Self::Unsupported(reason) } else { Self::Impossible(reason) }
    }
}
