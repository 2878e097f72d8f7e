//! Why the object store did not do what was asked.

use object_store::Error;

/// Why the object store did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ObjectError {
    /// The location is no object store.
    #[error("failed to open object store value={location:?}: {reason}")]
    Location {
        /// As given.
        location: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No object is there.
    #[error("failed to read object path={path}: there is none")]
    NotFound {
        /// Where.
        path: String,
    },
    /// The object is not what its reference says.
    #[error("failed to read object path={path}: it is corrupt: {reason}")]
    Corrupt {
        /// Where.
        path: String,
        /// What differs.
        reason: String,
    },
    /// The store cannot be reached or did not answer in time. Trying again is right.
    #[error("failed to {action} object path={path}: {reason}")]
    Unavailable {
        /// What was asked.
        action: &'static str,
        /// Where.
        path: String,
        /// What went wrong.
        reason: String,
    },
    /// The store answered no, and would again.
    #[error("failed to {action} object path={path}: the store refuses: {reason}")]
    Refused {
        /// What was asked.
        action: &'static str,
        /// Where.
        path: String,
        /// The store's words.
        reason: String,
    },
}

impl ObjectError {
    /// Whether trying again may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Location { .. } | Self::NotFound { .. } | Self::Corrupt { .. } | Self::Refused { .. } => {
                false
            }
        }
    }

    pub(super) fn from_store(action: &'static str, path: &str, error: &Error) -> Self {
        let (path, reason) = (path.to_owned(), error.to_string());
        match error {
            Error::NotFound { .. } => Self::NotFound { path },
            Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::UnknownConfigurationKey { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotModified { .. } => Self::Refused { action, path, reason },
            // The enum is open, and what is left are failures of transport.
            _ => Self::Unavailable { action, path, reason },
        }
    }
}
