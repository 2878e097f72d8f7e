//! Notes every task that is put, where it reaches the queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_queue::port::Message;
use millrace_schemas::envelope::decode;
use millrace_schemas::{RunId, Task, TaskKey, subjects};

/// A task that was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPut {
    /// The run.
    pub run: RunId,
    /// The task.
    pub key: TaskKey,
    /// It is for evaluation.
    pub evaluate: bool,
}

/// An observer of the tasks that reach the queue. Clones share its state.
#[derive(Debug, Clone, Default)]
pub struct PutWatch {
    seen: Arc<Mutex<BTreeMap<(RunId, TaskKey), TaskPut>>>,
}

impl PutWatch {
    /// Notes messages that were put; those that are no task of a rollout or a step are left out.
    pub fn put(&self, messages: &[Message]) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for message in messages {
            let Ok(named) = subjects::parse_task(&message.subject) else { continue };
            seen.entry((named.run.clone(), named.key)).or_insert_with(|| {
                let task = decode::<Task>("task", &message.payload);
                TaskPut { run: named.run, key: named.key, evaluate: task.is_ok_and(|task| task.evaluate) }
            });
        }
    }

    /// What was put so far, each task once.
    #[must_use]
    pub fn seen(&self) -> Vec<TaskPut> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
