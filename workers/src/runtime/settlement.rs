//! What becomes of a task after an attempt: one exhaustive match.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError, Delivery};
use millrace_schemas::limits::{MAX_DELIVER, MAX_REASON_BYTES};
use millrace_schemas::outcome::Returned;
use millrace_schemas::subjects::parse_task;
use millrace_schemas::text::cut;
use millrace_schemas::{Event, Outcome, OutcomeBody, RunId, TaskKey, WorkerId};

use super::executor::Verdict;
use super::in_flight::Hold;

/// The longest that a task is given back for.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Between tries to reach the queue with an outcome: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Who settles what.
pub(super) struct Settlement<'a> {
    pub(crate) broker: &'a Broker,
    pub(crate) worker: &'a WorkerId,
    pub(crate) delivery: &'a Delivery,
    /// Keeps the task alive meanwhile.
    pub(crate) hold: &'a Hold,
    /// The task's name and what it asks, once it was read.
    pub(crate) task: Option<(RunId, TaskKey, u64)>,
    /// From the start of the execution to its end.
    pub(crate) elapsed: Duration,
}

impl Settlement<'_> {
    /// Says a verdict to the log and the queue. Where the queue stays away the task is simply left: it comes
    /// again when its lease ends.
    pub(super) async fn settle(&self, verdict: Verdict) {
        let subject = &self.delivery.message.subject;
        match verdict {
            Verdict::Done(body, cost) => {
                self.conclude(body, cost.busy.unwrap_or(self.elapsed)).await;
            }
            Verdict::RetryAfter(_, reason) if self.is_spent_by_leaving() => self.give_back(reason).await,
            Verdict::RetryAfter(_, reason) if self.delivery.attempt >= MAX_DELIVER.unsigned_abs() => {
                // The queue would bury it as well, without the reason.
                let reason = format!("{reason} (tried {} times)", self.delivery.attempt);
                tracing::error!(subject, reason, "task buried");
                left(subject, self.patiently(|| self.broker.bury_spent(self.delivery, &reason)).await);
            }
            Verdict::RetryAfter(delay, reason) => {
                let delay = longer(delay, self.delivery.attempt);
                let attempt = self.delivery.attempt;
                tracing::warn!(subject, attempt, ?delay, reason, "task given back");
                left(subject, self.delivery.lease.retry_after(delay).await.map_err(Into::into));
            }
            Verdict::Poison(reason) => {
                tracing::error!(subject, reason, "task buried");
                left(subject, self.patiently(|| self.broker.bury(self.delivery, &reason)).await);
            }
            Verdict::Stale => left(subject, self.delivery.lease.done().await.map_err(Into::into)),
        }
    }

    /// Whether the worker leaves, and the queue would soon bury the task for being handed back: it counts deliveries,
    /// whatever came of them.
    fn is_spent_by_leaving(&self) -> bool {
        let next_is_last = self.delivery.attempt.saturating_add(1) >= MAX_DELIVER.unsigned_abs();
        next_is_last && self.hold.cancel.is_cancelled()
    }

    /// Takes the task out of the queue and asks for it to be put again, with no deliveries. In this order: while it is
    /// queued it cannot be put. Should this process end in between, the coordinator puts it again when the run has stalled.
    async fn give_back(&self, reason: String) {
        let subject = &self.delivery.message.subject;
        let Ok(named) = parse_task(subject) else {
            return left(subject, self.delivery.lease.retry_after(LONGEST_RETRY).await.map_err(Into::into));
        };
        tracing::warn!(subject, attempt = self.delivery.attempt, reason, "task returned to be put again");
        if let Err(error) = self.delivery.lease.done().await {
            return left(subject, Err(error.into()));
        }
        let reason = cut(&reason, MAX_REASON_BYTES).to_owned();
        let event = Event::Outcome(Outcome {
            key: named.key,
            worker: self.worker.clone(),
            busy_us: self.elapsed.as_micros() as u64,
            answers: self.task.as_ref().map(|(_, _, question)| *question),
            body: OutcomeBody::Returned(Returned { reason }),
        });
        let append = || self.broker.append_outcome(&named.run, named.key, self.delivery, &event);
        left(subject, self.patiently(append).await.map(|_| ()));
    }

    /// The outcome to the log; when it is stored, and not before, the queue may forget the task.
    async fn conclude(&self, body: OutcomeBody, busy: Duration) {
        let subject = &self.delivery.message.subject;
        let Some((run, key, question)) = &self.task else {
            unreachable!("only a task that was read is done")
        };
        let busy_us = busy.as_micros() as u64;
        let outcome =
            Outcome { key: *key, worker: self.worker.clone(), busy_us, answers: Some(*question), body };
        if let Err(malformed) = outcome.check() {
            let reason = format!("its outcome is refused: {malformed}");
            tracing::error!(subject, reason, "task buried");
            return left(subject, self.patiently(|| self.broker.bury(self.delivery, &reason)).await);
        }
        let event = Event::Outcome(outcome);
        match self.patiently(|| self.broker.append_outcome(run, *key, self.delivery, &event)).await {
            Ok(_) => left(subject, self.delivery.lease.done().await.map_err(Into::into)),
            Err(error) if error.is_transient() => left(subject, Err(error)),
            Err(error) => {
                let reason = format!("its outcome is refused: {error}");
                tracing::error!(subject, reason, "task buried");
                left(subject, self.broker.bury(self.delivery, &reason).await);
            }
        }
    }

    /// Tries until it succeeds, fails for good, or the task is cancelled: work that is done is not thrown
    /// away because the queue is away.
    async fn patiently<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, BrokerError>
    where
        F: Future<Output = Result<T, BrokerError>>,
    {
        let mut pause = RECONNECT.0;
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !error.is_transient() || self.hold.cancel.is_cancelled() {
                return Err(error);
            }
            tracing::warn!(subject = self.delivery.message.subject, %error, "queue is away");
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => pause = RECONNECT.1.min(pause * 2),
                () = self.hold.cancel.cancelled() => return Err(error),
            }
        }
    }
}

/// Each further delivery waits twice as long, for deliveries are counted and the last is followed by the
/// dead letters. No time stays no time.
fn longer(delay: Duration, attempt: u64) -> Duration {
    let doublings = attempt.saturating_sub(1).min(16) as u32;
    delay.saturating_mul(1 << doublings).min(LONGEST_RETRY.max(delay))
}

fn left(subject: &str, settled: Result<(), BrokerError>) {
    if let Err(error) = settled {
        tracing::warn!(subject, %error, "task not settled; it comes again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use async_trait::async_trait;
    use millrace_queue::clock::SystemClock;
    use millrace_queue::port::{Lease, Message};
    use millrace_queue::{EventLog, MemoryQueue, Objects, QueueError};
    use millrace_schemas::reward::RewardDone;

    use super::*;
    use crate::runtime::executor::Cost;
    use crate::runtime::in_flight::InHand;

    /// Notes how long the log was when the task was first forgotten.
    struct Noting {
        queue: Arc<MemoryQueue>,
        entries: AtomicU64,
    }

    const NEVER: u64 = u64::MAX;

    #[async_trait]
    impl Lease for Noting {
        async fn heartbeat(&self) -> Result<(), QueueError> {
            Ok(())
        }
        async fn done(&self) -> Result<(), QueueError> {
            let entries = self.queue.log_end().await?;
            let _ = self.entries.compare_exchange(NEVER, entries, SeqCst, SeqCst);
            Ok(())
        }
        async fn retry_after(&self, _delay: Duration) -> Result<(), QueueError> {
            unreachable!("it is done")
        }
        async fn poison(&self, _reason: &str) -> Result<(), QueueError> {
            unreachable!("it is done")
        }
    }

    #[tokio::test]
    async fn the_outcome_is_stored_before_the_task_is_forgotten() {
        let queue = Arc::new(MemoryQueue::new(Arc::new(SystemClock::new())));
        let lease = Arc::new(Noting { queue: queue.clone(), entries: AtomicU64::new(NEVER) });
        let message = Message { subject: "mr.task.x".into(), payload: "".into(), headers: vec![] };
        let delivery = Delivery { message, attempt: 1, seq: 1, stored_ns: 1, lease: lease.clone() };
        let in_hand = Arc::new(InHand::default());
        let settlement = Settlement {
            broker: &Broker::new(queue, Objects::memory()),
            worker: &"w".parse().unwrap(),
            delivery: &delivery,
            hold: &in_hand.hold(delivery.lease.clone()),
            task: Some(("lake".parse().unwrap(), "g1r0a0-w0".parse().unwrap(), 7)),
            elapsed: Duration::from_micros(7),
        };
        let body = OutcomeBody::Reward(RewardDone { score: 1.0, ..RewardDone::default() });
        settlement.settle(Verdict::Done(body, Cost::default())).await;
        assert_eq!(lease.entries.load(SeqCst), 1);
    }

    #[test]
    fn retries_wait_longer_and_longer() {
        let second = Duration::from_secs(1);
        assert_eq!([1, 2, 3, 5].map(|attempt| longer(second, attempt).as_secs()), [1, 2, 4, 16]);
        assert_eq!(longer(second, 1000), LONGEST_RETRY);
        assert_eq!(longer(Duration::ZERO, 4), Duration::ZERO);
        assert_eq!(longer(2 * LONGEST_RETRY, 3), 2 * LONGEST_RETRY);
    }
}
