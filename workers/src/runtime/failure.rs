//! Why a task was not done, and what to do next. Every error of an executor classifies into one
//! enum, by `From` beside the error's own type. The delays are bounds of the system, in the schemas'
//! `limits.rs`.

use std::time::Duration;

use millrace_queue::ObjectError;
use millrace_schemas::Task;
use millrace_schemas::limits::{
    RETRY_AWAY_MS, RETRY_ELSEWHERE_MS, RETRY_MOMENT_MS, RETRY_MS, RETRY_RESTART_MS,
};

/// Why a task was not done. Each has the reason, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// Another try may succeed, here or on another worker: the queue delivers the task again.
    Retry(Retry, String),
    /// No worker can do it: the task becomes a dead letter.
    Impossible(String),
}

/// When to try again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// What it waits for comes by itself in a moment: a first version, a thread.
    Moment,
    /// A process or an execution broke and starts again.
    Restart,
    /// A machine failed: the store, an engine, a sandbox.
    Soon,
    /// This build lacks something that another worker of the pool may have.
    Elsewhere,
    /// A server does not answer; it may be starting.
    Away,
    /// The other side said when.
    After(Duration),
}

impl Retry {
    /// Until the queue delivers the task again.
    #[must_use]
    pub const fn delay(self) -> Duration {
        Duration::from_millis(match self {
            Self::Moment => RETRY_MOMENT_MS,
            Self::Restart => RETRY_RESTART_MS,
            Self::Soon => RETRY_MS,
            Self::Elsewhere => RETRY_ELSEWHERE_MS,
            Self::Away => RETRY_AWAY_MS,
            Self::After(delay) => return delay,
        })
    }
}

impl Failure {
    /// A retry as after a failure of a machine.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` passes an error so")]
    pub fn soon(reason: impl ToString) -> Self {
        Self::Retry(Retry::Soon, reason.to_string())
    }

    /// No worker can do it.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "`map_err` passes an error so")]
    pub fn impossible(reason: impl ToString) -> Self {
        Self::Impossible(reason.to_string())
    }

    /// The task belongs to another stage. The queue's subjects rule that out.
    #[must_use]
    pub fn misrouted(task: &Task) -> Self {
        Self::Impossible(format!("task={} is not for this stage", task.key))
    }
}

impl From<ObjectError> for Failure {
    /// A damaged object may have been read badly, and a missing one may not have reached this
    /// replica yet.
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Location { .. } | ObjectError::Refused { .. } => Self::impossible(error),
            ObjectError::NotFound { .. }
            | ObjectError::Corrupt { .. }
            | ObjectError::Unavailable { .. }
            | ObjectError::Forbidden { .. } => Self::soon(error),
        }
    }
}
