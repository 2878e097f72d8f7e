//! What the log and the queue get after an attempt, for each verdict: one exhaustive match.

use std::time::Duration;

use millrace_queue::{Broker, BrokerError, Delivery};
use millrace_schemas::generate::Finish;
use millrace_schemas::limits::{MAX_DELIVER, MAX_REASON_BYTES};
use millrace_schemas::outcome::Returned;
use millrace_schemas::subjects::parse_task;
use millrace_schemas::text::cut;
use millrace_schemas::{Event, Outcome, OutcomeBody, RunId, TaskKey, WorkerId};

use super::executor::Verdict;
use super::in_flight::InFlightTask;

/// The longest back-off between two deliveries of a task, unless its verdict asks for more.
const MAX_BACK_OFF: Duration = Duration::from_secs(60);
/// Pause between tries to reach the queue with an outcome: the first, and the longest.
const RECONNECT: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// One delivery that is to be settled, and what its settlement needs.
pub(super) struct Settlement<'a> {
    pub(super) broker: &'a Broker,
    pub(super) worker: &'a WorkerId,
    pub(super) delivery: &'a Delivery,
    /// Keeps the lease alive until the settlement is over.
    pub(super) in_flight: &'a InFlightTask,
    /// The task's run, key and request fingerprint; `None` where it could not be decoded.
    pub(super) task: Option<(RunId, TaskKey, u64)>,
    /// From the start of the execution to its end.
    pub(super) elapsed: Duration,
    /// Deliveries that are no tries: a puller of several partitions hands tasks back.
    pub(super) hand_backs: u64,
}

impl Settlement<'_> {
    /// Writes a verdict to the log and the queue. Where the queue cannot be reached, the task stays
    /// unsettled: the queue delivers it again when its lease ends.
    pub(super) async fn settle(&self, verdict: Verdict) {
        let subject = &self.delivery.message.subject;
        match verdict {
            Verdict::Done(OutcomeBody::Generate(part), cost) if part.finish == Finish::Partial => {
                tracing::info!(subject, tokens = cost.tokens, "turn handed back, to be continued");
                let (reason, sampled) = ("its worker handed it back".to_owned(), Some(Box::new(part)));
                self.requeue(Returned { reason, sampled, begun: None }, cost.busy.unwrap_or(self.elapsed))
                    .await;
            }
            Verdict::Done(OutcomeBody::Returned(returned), cost) => {
                self.requeue(returned, cost.busy.unwrap_or(self.elapsed)).await;
            }
            Verdict::Done(body, cost) => {
                self.conclude(body, cost.busy.unwrap_or(self.elapsed)).await;
            }
            Verdict::RetryAfter(_, reason) if self.is_last_delivery_of_a_drain() => {
                tracing::warn!(
                    subject,
                    delivery = self.delivery.attempt,
                    reason,
                    "task returned to be requeued"
                );
                let reason = cut(&reason, MAX_REASON_BYTES).to_owned();
                self.requeue(Returned::undone(reason), self.elapsed).await;
            }
            Verdict::RetryAfter(_, reason) if self.delivery.attempt >= self.most_deliveries() => {
                // The queue would bury it as well, without the reason.
                let reason = format!("{reason} (tried {} times)", self.delivery.attempt);
                tracing::error!(subject, reason, "task buried");
                let buried = self.retry_transient(|| self.broker.bury_spent(self.delivery, &reason)).await;
                warn_unsettled(subject, buried);
            }
            Verdict::RetryAfter(delay, reason) => {
                let delay = back_off(delay, self.delivery.attempt);
                let delivery = self.delivery.attempt;
                tracing::warn!(subject, delivery, ?delay, reason, "task returned to the queue");
                warn_unsettled(subject, self.delivery.lease.retry_after(delay).await.map_err(Into::into));
            }
            Verdict::Poison(reason) => {
                tracing::error!(subject, reason, "task buried");
                let buried = self.retry_transient(|| self.broker.bury(self.delivery, &reason)).await;
                warn_unsettled(subject, buried);
            }
            Verdict::Stale => {
                warn_unsettled(subject, self.delivery.lease.done().await.map_err(Into::into));
            }
        }
    }

    /// Deliveries of the task before it is buried. Those that were handed back are not known, so all
    /// that may have been are allowed for.
    const fn most_deliveries(&self) -> u64 {
        MAX_DELIVER.unsigned_abs() + self.hand_backs
    }

    /// Whether the worker leaves, and the queue would soon bury the task for being returned: the
    /// queue counts deliveries, however they end.
    fn is_last_delivery_of_a_drain(&self) -> bool {
        let next_is_last = self.delivery.attempt.saturating_add(1) >= self.most_deliveries();
        next_is_last && self.in_flight.cancel.is_cancelled()
    }

    /// Acks the task and asks the coordinator to requeue it, with no deliveries counted, and with
    /// what there is of it. The order matters: the queue refuses a task that it still has. If this
    /// process dies in between, the coordinator requeues the task when the run has stalled.
    async fn requeue(&self, returned: Returned, busy: Duration) {
        let subject = &self.delivery.message.subject;
        let Ok(named) = parse_task(subject) else {
            let returned = self.delivery.lease.retry_after(MAX_BACK_OFF).await;
            return warn_unsettled(subject, returned.map_err(Into::into));
        };
        if let Err(error) = self.delivery.lease.done().await {
            return warn_unsettled(subject, Err(error.into()));
        }
        let event = Event::Outcome(Outcome {
            key: named.key,
            worker: self.worker.clone(),
            busy_us: busy.as_micros() as u64,
            request_fingerprint: self.task.as_ref().map(|(_, _, fingerprint)| *fingerprint),
            body: OutcomeBody::Returned(returned),
        });
        let append = || self.broker.append_outcome(&named.run, named.key, self.delivery, &event);
        warn_unsettled(subject, self.retry_transient(append).await.map(|_| ()));
    }

    /// Appends the outcome to the log. The task is acked when the outcome is stored, and not
    /// before.
    async fn conclude(&self, body: OutcomeBody, busy: Duration) {
        let subject = &self.delivery.message.subject;
        let Some((run, key, fingerprint)) = &self.task else {
            unreachable!("only a decoded task is executed")
        };
        let busy_us = busy.as_micros() as u64;
        let worker = self.worker.clone();
        let outcome = Outcome { key: *key, worker, busy_us, request_fingerprint: Some(*fingerprint), body };
        if let Err(malformed) = outcome.check() {
            let reason = format!("its outcome is refused: {malformed}");
            tracing::error!(subject, reason, "task buried");
            let buried = self.retry_transient(|| self.broker.bury(self.delivery, &reason)).await;
            return warn_unsettled(subject, buried);
        }
        let event = Event::Outcome(outcome);
        let append = || self.broker.append_outcome(run, *key, self.delivery, &event);
        match self.retry_transient(append).await {
            Ok(_) => {
                warn_unsettled(subject, self.delivery.lease.done().await.map_err(Into::into));
            }
            Err(error) if error.is_transient() => warn_unsettled(subject, Err(error)),
            Err(error) => {
                let reason = format!("its outcome is refused: {error}");
                tracing::error!(subject, reason, "task buried");
                warn_unsettled(subject, self.broker.bury(self.delivery, &reason).await);
            }
        }
    }

    /// Calls until it succeeds, fails for good, or the task is cancelled. So finished work is not
    /// lost while the queue cannot be reached.
    async fn retry_transient<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, BrokerError>
    where
        F: Future<Output = Result<T, BrokerError>>,
    {
        let mut pause = RECONNECT.0;
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if !error.is_transient() || self.in_flight.cancel.is_cancelled() {
                return Err(error);
            }
            tracing::warn!(subject = self.delivery.message.subject, %error, "queue cannot be reached");
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => pause = RECONNECT.1.min(pause * 2),
                () = self.in_flight.cancel.cancelled() => return Err(error),
            }
        }
    }
}

/// Exponential back-off: doubled with each delivery, because deliveries are counted and the last
/// one ends in the dead-letter queue. A delay of zero stays zero.
fn back_off(delay: Duration, delivery: u64) -> Duration {
    let doublings = delivery.saturating_sub(1).min(16) as u32;
    delay.saturating_mul(1 << doublings).min(MAX_BACK_OFF.max(delay))
}

fn warn_unsettled(subject: &str, settled: Result<(), BrokerError>) {
    if let Err(error) = settled {
        tracing::warn!(subject, %error, "task not settled; the queue delivers it again");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

    use async_trait::async_trait;
    use millrace_queue::clock::SystemClock;
    use millrace_queue::port::{Lease, Message};
    use millrace_queue::{DeadLetterQueue, EventLog, MemoryQueue, Objects, QueueError};
    use millrace_schemas::limits::HAND_BACKS;
    use millrace_schemas::reward::RewardDone;

    use super::*;
    use crate::runtime::executor::Cost;
    use crate::runtime::in_flight::InFlight;

    /// Notes how many entries the log had when the task was first acked, and whether it was
    /// returned.
    struct NotingLease {
        queue: Arc<MemoryQueue>,
        entries: AtomicU64,
        returned: AtomicBool,
    }

    impl NotingLease {
        fn of(queue: &Arc<MemoryQueue>) -> Arc<Self> {
            let entries = AtomicU64::new(NEVER);
            Arc::new(Self { queue: queue.clone(), entries, returned: AtomicBool::new(false) })
        }
    }

    const NEVER: u64 = u64::MAX;

    #[async_trait]
    impl Lease for NotingLease {
        async fn heartbeat(&self) -> Result<(), QueueError> {
            Ok(())
        }
        async fn done(&self) -> Result<(), QueueError> {
            let entries = self.queue.log_end().await?;
            let _ = self.entries.compare_exchange(NEVER, entries, SeqCst, SeqCst);
            Ok(())
        }
        async fn retry_after(&self, _delay: Duration) -> Result<(), QueueError> {
            self.returned.store(true, SeqCst);
            Ok(())
        }
        async fn poison(&self, _reason: &str) -> Result<(), QueueError> {
            Ok(())
        }
    }

    /// Settles this delivery of a task. Returns its lease, and how many dead letters there are then.
    async fn settled(attempt: u64, hand_backs: u64, verdict: Verdict) -> (Arc<NotingLease>, usize) {
        let queue = Arc::new(MemoryQueue::new(Arc::new(SystemClock::new())));
        let lease = NotingLease::of(&queue);
        let subject = "mr.task.generate.policy-00.lake.v0.g1r0a0-s1".to_owned();
        let message = Message { subject, payload: "".into(), headers: vec![] };
        let delivery = Delivery { message, attempt, seq: 1, stored_ns: 1, lease: lease.clone() };
        let in_flight = Arc::new(InFlight::default());
        let settlement = Settlement {
            broker: &Broker::new(queue.clone(), Objects::memory()),
            worker: &"w".parse().unwrap(),
            delivery: &delivery,
            in_flight: &in_flight.add(delivery.lease.clone()),
            task: Some(("lake".parse().unwrap(), "g1r0a0-w0".parse().unwrap(), 7)),
            elapsed: Duration::from_micros(7),
            hand_backs,
        };
        settlement.settle(verdict).await;
        let letters = queue.dead_letters(1, 10).await.unwrap();
        (lease, letters.len())
    }

    #[tokio::test]
    async fn the_outcome_is_stored_before_the_task_is_acked() {
        let body = OutcomeBody::Reward(RewardDone { score: 1.0, ..RewardDone::default() });
        let (lease, _) = settled(1, 0, Verdict::Done(body, Cost::default())).await;
        assert_eq!(lease.entries.load(SeqCst), 1);
    }

    #[tokio::test]
    async fn a_task_that_was_handed_back_has_its_tries_left() {
        let (most, back) = (MAX_DELIVER.unsigned_abs(), HAND_BACKS.unsigned_abs());
        for (attempt, hand_backs, is_returned) in
            [(most - 1, 0, true), (most, 0, false), (most, back, true), (most + back, back, false)]
        {
            let verdict = Verdict::RetryAfter(Duration::ZERO, "no answer".to_owned());
            let (lease, letters) = settled(attempt, hand_backs, verdict).await;
            let seen = (lease.returned.load(SeqCst), letters);
            assert_eq!(seen, (is_returned, usize::from(!is_returned)), "delivery {attempt}");
        }
    }

    #[test]
    fn back_off_doubles_with_each_delivery_up_to_its_bound() {
        let second = Duration::from_secs(1);
        assert_eq!([1, 2, 3, 5].map(|delivery| back_off(second, delivery).as_secs()), [1, 2, 4, 16]);
        assert_eq!(back_off(second, 1000), MAX_BACK_OFF);
        assert_eq!(back_off(Duration::ZERO, 4), Duration::ZERO);
        assert_eq!(back_off(2 * MAX_BACK_OFF, 3), 2 * MAX_BACK_OFF);
    }
}
