//! What a stage implements, and the verdicts that it can give on a task.

use std::time::Duration;

use async_trait::async_trait;
use millrace_schemas::{OutcomeBody, Task};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::failure::Failure;

/// Executes the tasks of one stage.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Executes a task. `cancel` fires when the task became stale or the worker must leave. The
    /// future is dropped then, so work for the task elsewhere should listen to `cancel`.
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict;

    /// Whether another worker would probably do the task sooner. The first delivery of such a task
    /// goes back to the queue at once, and the worker that is delivered it next executes it.
    fn passes_on(&self, _task: &Task) -> bool {
        false
    }

    /// The worker leaves, and its grace period is over. An executor that can end its tasks with what
    /// there is of them does so now, and returns true. The tasks of the others are cancelled.
    fn hand_back(&self) -> bool {
        false
    }

    /// Whether tasks may be pulled now, and its changes; `None` where they always may.
    fn gate(&self) -> Option<watch::Receiver<bool>> {
        None
    }

    /// Waits until nothing here is needed for tasks of other workers. The worker leaves after that, or
    /// when its grace period is over.
    async fn linger(&self) {}

    /// Whether it can compute. A train worker that cannot sends no heartbeats, so it is no member
    /// of gangs meanwhile.
    fn is_well(&self) -> bool {
        true
    }

    /// Why its tasks wait, in words for people; `None` while it can execute them.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

/// The end of one attempt at a task. There is no further case, and none is a reward of 0.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Executed. The outcome goes to the log, then the task is acked.
    Done(OutcomeBody, Cost),
    /// Not now, for this reason. The queue delivers the task again after at least this long.
    RetryAfter(Duration, String),
    /// No worker can execute it, for this reason. It becomes a dead letter.
    Poison(String),
    /// Its run no longer needs it. The task is acked without an outcome.
    Stale,
}

/// What a task took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time spent on it, its share where work was batched; `None` for the time from start to end.
    pub busy: Option<Duration>,
    /// Tokens sampled.
    pub tokens: u64,
}

impl From<Failure> for Verdict {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Retry(retry, reason) => Self::RetryAfter(retry.delay(), reason),
            Failure::Impossible(reason) => Self::Poison(reason),
        }
    }
}

impl From<Result<(OutcomeBody, Cost), Failure>> for Verdict {
    fn from(executed: Result<(OutcomeBody, Cost), Failure>) -> Self {
        match executed {
            Ok((outcome, cost)) => Self::Done(outcome, cost),
            Err(failure) => failure.into(),
        }
    }
}

/// Without an outcome the run no longer needs the task.
impl From<Result<Option<(OutcomeBody, Cost)>, Failure>> for Verdict {
    fn from(executed: Result<Option<(OutcomeBody, Cost)>, Failure>) -> Self {
        executed.transpose().map_or(Self::Stale, Self::from)
    }
}
