//! Tasks: put, and opened by a worker.

use bytes::Bytes;
use futures::future::{BoxFuture, ready as ready_future};
use futures::{FutureExt, StreamExt};
use millrace_schemas::limits::{CLAIMS_IN_FLIGHT, MAX_CLAIM_BYTES, MAX_INLINE_BYTES};
use millrace_schemas::subjects::{self, CLAIM_HEADER, COPY_HEADER, TRACEPARENT_HEADER};
use millrace_schemas::{RunId, Task};

use super::{Broker, BrokerError, parse_claim};
use crate::port::{Delivery, Message, Put};
use crate::trace::traceparent;
use millrace_objects::ObjectError;

/// Why a delivery is not a task in flight.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// It never will be one: poison.
    #[error("failed to read task: {0}")]
    Undecodable(String),
    /// Its payload cannot be fetched now: retry later.
    #[error("failed to fetch task: {0}")]
    Unavailable(String),
}

/// Why a payload is not at hand.
pub(super) enum ClaimError {
    /// It never will be.
    Lost(String),
    /// It may be, later.
    Unavailable(ObjectError),
}

impl Broker {
    /// Puts tasks, each on its own subject, and waits until they are stored; the answers are in the same
    /// order. Putting a task again is harmless.
    pub async fn put_tasks(&self, tasks: &[Task]) -> Vec<Result<Put, BrokerError>> {
        let (mut ready, mut results) = (Vec::with_capacity(tasks.len()), Vec::with_capacity(tasks.len()));
        let mut checking: Vec<BoxFuture<'_, Result<Message, ObjectError>>> = Vec::with_capacity(tasks.len());
        for task in tasks {
            let message = task_message(task);
            checking.push(match message.payload.len() > MAX_INLINE_BYTES {
                true => self.check_in(&task.run, message).boxed(),
                false => ready_future(Ok(message)).boxed(),
            });
        }
        // Large payloads are stored some at once; the order stays.
        let mut checked = futures::stream::iter(checking).buffered(CLAIMS_IN_FLIGHT);
        while let Some(checked) = checked.next().await {
            results.push(match checked {
                Ok(message) => {
                    ready.push(message);
                    None
                }
                Err(e) => Some(Err(e.into())),
            });
        }
        let mut put = self.queue.put(ready).await.into_iter();
        let answer = |result: Option<_>| {
            result.unwrap_or_else(|| {
                put.next().expect("the queue answers for every task").map_err(BrokerError::Queue)
            })
        };
        results.into_iter().map(answer).collect()
    }

    /// Reads a delivered task, fetching a large payload from the object store.
    ///
    /// # Errors
    /// [`OpenError::Undecodable`]: bury it. [`OpenError::Unavailable`]: give it back with a delay.
    pub async fn open_task(&self, delivery: &Delivery) -> Result<Task, OpenError> {
        let undecodable = |reason: String| OpenError::Undecodable(reason);
        let subject = &delivery.message.subject;
        if delivery.message.header(COPY_HEADER).is_some() {
            return Err(undecodable("it is a copy of what is stored elsewhere".to_owned()));
        }
        let named = subjects::parse_task(subject).map_err(|e| undecodable(e.to_string()))?;
        let payload = match self.check_out(&named.run, &delivery.message).await {
            Ok(payload) => payload,
            Err(ClaimError::Lost(reason)) => return Err(OpenError::Undecodable(reason)),
            Err(ClaimError::Unavailable(e)) => return Err(OpenError::Unavailable(e.to_string())),
        };
        let task = Task::from_bytes(&payload).map_err(|e| undecodable(e.to_string()))?;
        let said = subjects::task(&task.pool, &task.run, task.version, task.key);
        if said != *subject {
            return Err(undecodable(format!(
                "its content speaks of subject={said}, not of subject={subject}"
            )));
        }
        if !task.is_coherent() {
            return Err(undecodable(format!("its body is not one of stage={}", task.stage())));
        }
        Ok(task)
    }

    /// The payload of a message, from the object store if it was moved there.
    pub(super) async fn check_out(&self, run: &RunId, message: &Message) -> Result<Bytes, ClaimError> {
        let Some(claim) = message.header(CLAIM_HEADER) else { return Ok(message.payload.clone()) };
        let blob = parse_claim(claim).map_err(ClaimError::Lost)?;
        if blob.bytes > MAX_CLAIM_BYTES {
            return Err(ClaimError::Lost(format!(
                "its payload has bytes={}, above {MAX_CLAIM_BYTES}",
                blob.bytes
            )));
        }
        self.objects.get_blob(run, &blob).await.map_err(|e| match e {
            ObjectError::NotFound { .. } | ObjectError::Corrupt { .. } => ClaimError::Lost(e.to_string()),
            ObjectError::Unavailable { .. }
            | ObjectError::Forbidden { .. }
            | ObjectError::Refused { .. }
            | ObjectError::Location { .. } => ClaimError::Unavailable(e),
        })
    }
}

fn task_message(task: &Task) -> Message {
    Message {
        subject: subjects::task(&task.pool, &task.run, task.version, task.key),
        payload: task.to_bytes(),
        headers: vec![(TRACEPARENT_HEADER, traceparent(&task.run, task.key))],
    }
}
