//! What every stage's worker implements, and all that it can say of a task.

use std::time::Duration;

use async_trait::async_trait;
use millrace_schemas::{OutcomeBody, Task};
use tokio_util::sync::CancellationToken;

/// Does the tasks of one stage.
#[async_trait]
pub trait Executor: Send + Sync + 'static {
    /// Does a task. `cancel` fires when the task became stale, or when the worker must leave; the future is
    /// dropped then, so whatever goes on elsewhere for it should listen.
    async fn execute(&self, task: Task, cancel: CancellationToken) -> Verdict;

    /// Whether it can still compute. A train worker that cannot is no member of gangs until it can again.
    fn is_well(&self) -> bool {
        true
    }

    /// What its tasks wait for, where it cannot do them now; for people.
    fn waits_for(&self) -> Option<String> {
        None
    }
}

/// The end of one attempt at a task. There is no further case, and none is a reward of 0.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It is done. The outcome goes to the log, then the queue forgets the task.
    Done(OutcomeBody, Cost),
    /// Not now, for this reason. The task goes back to the queue for at least this long.
    RetryAfter(Duration, String),
    /// Nobody can do it, for this reason. It goes to the dead letters.
    Poison(String),
    /// It is of no use any more. The queue forgets it.
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

impl Verdict {
    /// Poison: the content does not belong to this stage. The queue's subjects rule that out.
    #[must_use]
    pub fn misrouted(task: &Task) -> Self {
        Self::Poison(format!("task={} is not for this stage", task.key))
    }
}
