//! An error of the object store.

use std::io::{self, ErrorKind};

use object_store::Error;

/// An error of the object store.
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
    /// No object is there, and the store is.
    #[error("failed to read object path={path}: there is none")]
    NotFound {
        /// Where.
        path: String,
    },
    /// The content of the object differs from its reference.
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
        /// The operation that failed.
        action: &'static str,
        /// Where.
        path: String,
        /// What went wrong.
        reason: String,
    },
    /// The store does not accept these credentials, or they may not do this. Nothing is said of the object: once
    /// the credentials or rights are repaired, the same request works.
    #[error(
        "failed to {action} object path={path}: the store forbids it: {reason}; check the credentials and what \
         they may do"
    )]
    Forbidden {
        /// The operation that failed.
        action: &'static str,
        /// Where.
        path: String,
        /// The store's error message.
        reason: String,
    },
    /// The request makes no sense to the store, and never will.
    #[error("failed to {action} object path={path}: the store refuses: {reason}")]
    Refused {
        /// The operation that failed.
        action: &'static str,
        /// Where.
        path: String,
        /// The store's error message.
        reason: String,
    },
}

/// Error codes of S3 for invalid or expired credentials; some come with status 400.
const BAD_CREDENTIALS: [&str; 4] =
    ["ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired"];
/// Error code of S3 for a bucket that does not exist, with status 404.
const NO_BUCKET: &str = "NoSuchBucket";

impl ObjectError {
    /// Whether a retry may help without an intervention.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::Location { .. }
            | Self::NotFound { .. }
            | Self::Corrupt { .. }
            | Self::Forbidden { .. }
            | Self::Refused { .. } => false,
        }
    }

    /// The kind of a failure, as metrics name it; `None` where the store works and has no such
    /// object.
    pub(super) const fn kind(&self) -> Option<&'static str> {
        match self {
            Self::NotFound { .. } => None,
            Self::Location { .. } => Some("location"),
            Self::Corrupt { .. } => Some("corrupt"),
            Self::Unavailable { .. } => Some("unavailable"),
            Self::Forbidden { .. } => Some("forbidden"),
            Self::Refused { .. } => Some("refused"),
        }
    }

    pub(super) fn from_store(action: &'static str, path: &str, error: &Error) -> Self {
        let (path, reason) = (path.to_owned(), error.to_string());
        match error {
            // The bucket does not exist, which is no evidence about one object.
            Error::NotFound { .. } if reason.contains(NO_BUCKET) => {
                Self::Unavailable { action, path, reason }
            }
            Error::NotFound { .. } => Self::NotFound { path },
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Self::Forbidden { action, path, reason }
            }
            Error::InvalidPath { .. }
            | Error::NotSupported { .. }
            | Error::NotImplemented { .. }
            | Error::UnknownConfigurationKey { .. }
            | Error::AlreadyExists { .. }
            | Error::Precondition { .. }
            | Error::NotModified { .. } => Self::Refused { action, path, reason },
            // The enum is open, and what is left are failures of transport, and a folder's.
            _ if is_denied(error) || BAD_CREDENTIALS.iter().any(|word| reason.contains(word)) => {
                Self::Forbidden { action, path, reason }
            }
            _ => Self::Unavailable { action, path, reason },
        }
    }
}

/// Whether the operating system let us not.
fn is_denied(error: &Error) -> bool {
    let mut next = Some(error as &(dyn std::error::Error + 'static));
    while let Some(error) = next {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        if matches!(kind, Some(ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)) {
            return true;
        }
        next = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_may_not_be_read_is_forbidden() {
        for (kind, forbidden) in [
            (ErrorKind::PermissionDenied, true),
            (ErrorKind::ReadOnlyFilesystem, true),
            (ErrorKind::StorageFull, false),
            (ErrorKind::TimedOut, false),
        ] {
            let error = Error::Generic { store: "LocalFileSystem", source: io::Error::from(kind).into() };
            let error = ObjectError::from_store("read", "a", &error);
            assert_eq!(matches!(error, ObjectError::Forbidden { .. }), forbidden, "{error}");
            assert_eq!(error.is_transient(), !forbidden, "{error}");
        }
    }
}
