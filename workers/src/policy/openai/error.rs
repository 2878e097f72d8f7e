//! Errors of a server, each with its consequence.

use std::time::Duration;

use millrace_policy::PolicyError;

/// Why a request to a server failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServerError {
    /// It cannot be reached, ended a reply in the middle, or is silent. The worker waits for it,
    /// and it must prove its weights when it is back.
    #[error("the server is away: {0}")]
    Away(String),
    /// It has no room now. The request is retried.
    #[error("the server is busy: {message}")]
    Busy {
        /// The server's own bound on the retry.
        after: Duration,
        /// Its message.
        message: String,
    },
    /// It had an internal error. A retry may succeed.
    #[error("the server failed: {0}")]
    Failed(String),
    /// It refuses such a request from any worker: a context too long.
    #[error("the server refuses: {0}")]
    Refused(String),
    /// Its replies cannot be trained on, or it lacks a call. The message names the flag that it
    /// needs.
    #[error("the server cannot be used as it was started: {0}")]
    Unfit(String),
    /// It serves other weights than it was given.
    #[error("the server does not serve the weights that it was given: {0}")]
    OtherWeights(String),
}

impl ServerError {
    /// A malformed reply.
    pub(super) fn malformed(what: &str) -> Self {
        Self::Unfit(format!("malformed reply: {what}"))
    }

    /// Whether what the server serves is unknown from now on.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        match self {
            Self::Away(_) | Self::OtherWeights(_) => true,
            Self::Busy { .. } | Self::Failed(_) | Self::Refused(_) | Self::Unfit(_) => false,
        }
    }
}

impl From<ServerError> for PolicyError {
    fn from(error: ServerError) -> Self {
        let message = error.to_string();
        match error {
            ServerError::Away(_)
            | ServerError::Busy { .. }
            | ServerError::Failed(_)
            | ServerError::OtherWeights(_) => Self::Temporary(message),
            ServerError::Refused(_) => Self::Impossible(message),
            ServerError::Unfit(_) => Self::Unsupported(message),
        }
    }
}
