//! Dead letters and notices: tasks that nobody can do, kept with their bytes, and the messages
//! about them.

use bytes::Bytes;
use millrace_schemas::subjects::{self, CLAIM_HEADER, COPY_HEADER, REASON_HEADER, SUBJECT_HEADER};
use millrace_schemas::{Event, RunId, TaskKey};
use serde::Serialize;

use super::{Broker, BrokerError};
use crate::port::{Delivery, Exhausted, ExhaustedTasks, LogEntry, Message, QueueError};

/// Dead letters that are read at once.
const MAX_LETTERS: usize = 10_000;
/// Characters of a subject that are shown.
const MAX_SUBJECT_CHARS: usize = 200;
/// Characters of a reason that is kept. A header has little room.
const MAX_REASON_CHARS: usize = 2_000;

/// A task that nobody could do.
#[derive(Debug, Clone)]
pub struct DeadLetter {
    /// Its position among the dead letters; names it for [`Broker::requeue_dead`].
    pub seq: u64,
    /// The subject on which it was put.
    pub subject: String,
    /// Run and task, if the subject names them.
    pub task: Option<(RunId, TaskKey)>,
    /// Why it is here.
    pub reason: String,
    /// Why it cannot be tried again; `None` where it can.
    pub refusal: Option<String>,
    /// Its bytes as they were put; empty when they are in the object store.
    pub payload: Bytes,
}

impl Broker {
    /// Sends a notice to all listeners, as JSON. Best effort: a failure is only logged.
    pub async fn notice<T: Serialize>(&self, subject: String, message: &T) {
        let sent = match serde_json::to_vec(message) {
            Ok(payload) => self.queue.notice(subject, payload.into()).await.map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        if let Err(reason) = sent {
            tracing::debug!(reason, "notice not sent");
        }
    }

    /// Gives up a task in flight. Its bytes go to the dead-letter queue, an event goes to the log,
    /// and the queue forgets the task. Repeating the call after a failure is harmless.
    ///
    /// # Errors
    /// The queue cannot be reached; the task is still in flight.
    pub async fn bury(&self, delivery: &Delivery, reason: &str) -> Result<(), BrokerError> {
        self.give_up(&delivery.message, delivery.seq, reason, false).await?;
        let short = clean(reason);
        Ok(delivery.lease.poison(&short).await?)
    }

    /// As [`Broker::bury`], for a task in flight that has no deliveries left and that no worker has
    /// found impossible. The reason is why the last delivery was given up.
    ///
    /// # Errors
    /// The queue cannot be reached; the task is still in flight.
    pub async fn bury_spent(&self, delivery: &Delivery, reason: &str) -> Result<(), BrokerError> {
        self.give_up(&delivery.message, delivery.seq, reason, true).await?;
        Ok(delivery.lease.poison(&clean(reason)).await?)
    }

    /// Waits for tasks that were delivered too often.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn exhausted(&self) -> Result<Box<dyn ExhaustedTasks>, BrokerError> {
        Ok(self.queue.exhausted().await?)
    }

    /// As [`Broker::bury`], for a task that was delivered too often.
    ///
    /// # Errors
    /// The queue cannot be reached; the task will be given again.
    pub async fn bury_exhausted(&self, exhausted: &Exhausted) -> Result<(), BrokerError> {
        let reason = exhausted.message.header(REASON_HEADER).unwrap_or("delivered too often");
        self.give_up(&exhausted.message, exhausted.seq, reason, true).await?;
        Ok(exhausted.lease.done().await?)
    }

    async fn give_up(
        &self,
        message: &Message,
        seq: u64,
        reason: &str,
        exhausted: bool,
    ) -> Result<(), BrokerError> {
        let mut headers: Vec<_> =
            message.headers.iter().filter(|(name, _)| *name != REASON_HEADER).cloned().collect();
        headers.push((REASON_HEADER, clean(reason)));
        headers.push((SUBJECT_HEADER, message.subject.clone()));
        let id = format!("{}/{seq}", message.subject);
        let subject = dead_subject(&message.subject);
        let letter = Message { subject, payload: message.payload.clone(), headers };
        self.queue.bury(letter, &id).await?;
        if let Ok(task) = subjects::parse_task(&message.subject) {
            let event = Event::DeadLetter { key: task.key, reason: clean(reason), exhausted };
            self.append(task.run.as_str(), &event).await?;
        }
        Ok(())
    }

    /// The oldest dead letters, as many as are read at once.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, BrokerError> {
        self.dead_letters_from(1, MAX_LETTERS).await
    }

    /// A page of the dead letters: from position `from` on (1 is the first), oldest first, at most `max`.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn dead_letters_from(&self, from: u64, max: usize) -> Result<Vec<DeadLetter>, BrokerError> {
        let letters = self.queue.dead_letters(from, max).await?;
        Ok(letters.into_iter().map(|entry| read(entry).0).collect())
    }

    /// Tries a dead letter again: an event to the log, its bytes on their old subject, the letter gone.
    /// Whatever fails in between, doing it again is harmless. A letter goes back only to the stage whose worker could
    /// write it: what one stage's worker wrote is never put as another stage's task.
    ///
    /// # Errors
    /// No such letter, it is refused, or the queue cannot be reached.
    pub async fn requeue_dead(&self, seq: u64) -> Result<(), BrokerError> {
        let invalid = |reason: String| BrokerError::Invalid { action: "requeue a dead letter", reason };
        let letters = self.queue.dead_letters(seq, 1).await?;
        let entry = letters.into_iter().find(|entry| entry.seq == seq);
        let (letter, headers) = read(entry.ok_or_else(|| invalid(format!("there is no seq={seq}")))?);
        if let Some(refusal) = letter.refusal {
            return Err(invalid(format!("seq={seq}: {refusal}")));
        }
        let (run, key) =
            letter.task.ok_or_else(|| invalid(format!("subject={} names no task", letter.subject)))?;
        // The event first: an outcome before the requeue's entry would not count.
        self.append(run.as_str(), &Event::Requeued { key }).await?;
        let task = Message { subject: letter.subject, payload: letter.payload, headers };
        let put = self.queue.put(vec![task]).await.pop();
        put.unwrap_or_else(|| {
            Err(QueueError::Unavailable { action: "put a task", reason: "no answer".into() })
        })?;
        Ok(self.queue.unbury(seq).await?)
    }
}

/// A dead letter, and the headers that the task had.
fn read(entry: LogEntry) -> (DeadLetter, Vec<(&'static str, String)>) {
    let header = |name: &str| entry.message.header(name).unwrap_or_default().to_owned();
    let (subject, reason) = (header(SUBJECT_HEADER), header(REASON_HEADER));
    let refusal = refusal(&entry.message, &subject);
    let task = subjects::parse_task(&subject).ok().map(|task| (task.run, task.key));
    let kept = [CLAIM_HEADER, subjects::TRACEPARENT_HEADER];
    let headers = entry.message.headers.into_iter().filter(|(name, _)| kept.contains(name)).collect();
    (DeadLetter { seq: entry.seq, subject, task, reason, refusal, payload: entry.message.payload }, headers)
}

/// Why a letter cannot be put on the subject that it names. Rights are given by a letter's own subject, so stage,
/// pool, run and task of both agree unless somebody wrote what he has no right to.
fn refusal(letter: &Message, subject: &str) -> Option<String> {
    if letter.header(COPY_HEADER).is_some() {
        return Some("it is a copy of what is stored elsewhere, and nobody's letter".to_owned());
    }
    let right = dead_subject(subject);
    (letter.subject != right).then(|| {
        let named: String = subject.chars().take(MAX_SUBJECT_CHARS).collect();
        format!(
            "it names the task on subject={named:?}, whose letters are on subject={right:?}; this one is on \
             subject={:?}, and its writer may have no right to the other",
            letter.subject
        )
    })
}

fn dead_subject(subject: &str) -> String {
    match subjects::parse_task(subject) {
        Ok(task) => subjects::dead(task.stage, task.pool.as_str(), task.run.as_str(), &task.key.to_string()),
        Err(_) => subjects::dead_stray(subject),
    }
}

/// A header is one line.
fn clean(reason: &str) -> String {
    reason.chars().take(MAX_REASON_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
