//! Notes every task that is put, where it reaches the queue.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use millrace_queue::port::Message;
use millrace_schemas::{RunId, Task, TaskBody, TaskKey, subjects};

/// A task that was put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskPut {
    /// The run.
    pub run: RunId,
    /// The task.
    pub key: TaskKey,
    /// It is for evaluation.
    pub evaluate: bool,
    /// The log entries that it refers to: those that a turn is sampled after, or the state that a step goes on from and
    /// the turn that it takes; `None` of other tasks.
    pub context: Option<Vec<u64>>,
    /// The call that a step's turn answers, 0 for none, where calls are side by side.
    pub answers: Option<u32>,
}

impl From<&Task> for TaskPut {
    fn from(task: &Task) -> Self {
        let (prefix, answers) = match &task.body {
            TaskBody::Generate(generate) => (Some(&generate.prefix), None),
            TaskBody::EnvStep(step) => (Some(&step.prefix), step.answers),
            _ => (None, None),
        };
        let context = prefix.map(|prefix| prefix.iter().map(|entry| entry.seq).collect());
        Self { run: task.run.clone(), key: task.key, evaluate: task.evaluate, context, answers }
    }
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
                let (evaluate, context, answers) = (false, None, None);
                let unread = TaskPut { run: named.run, key: named.key, evaluate, context, answers };
                Task::from_bytes(&message.payload).map_or(unread, |task| TaskPut::from(&task))
            });
        }
    }

    /// What was put so far, each task once.
    #[must_use]
    pub fn seen(&self) -> Vec<TaskPut> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}
