//! What this process did, by stage: for people (`mr.notice.worker.<id>`), for `/metrics`, for `/healthz`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millrace_queue::Broker;
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::notice::{StageCounters, WorkerNotice};
use millrace_schemas::text::shown;
use millrace_schemas::{Stage, WorkerId, subjects};
use millrace_telemetry::Health;

use super::executor::{Executor, Verdict};

/// Reports between two questions to the queue whether it is there.
const REPORTS_PER_PROBE: u64 = 10;

/// The counters of one stage.
#[derive(Debug, Default)]
pub(super) struct Counters {
    done: AtomicU64,
    retried: AtomicU64,
    poison: AtomicU64,
    stale: AtomicU64,
    in_hand: AtomicU64,
    tokens: AtomicU64,
    busy: Mutex<Busy>,
    /// Why the last task was given back; `None` once another one ended.
    given_back: Mutex<Option<String>>,
}

/// What counts for each stage, and what does its tasks.
pub(super) type Stages = BTreeMap<Stage, (Arc<Counters>, Arc<dyn Executor>)>;

/// Time in which at least one task was being executed.
#[derive(Debug, Default)]
struct Busy {
    executing: u32,
    since: Option<Instant>,
    total: Duration,
}

/// A task in hand; counted as let go when dropped.
pub(super) struct InHandCount<'a>(&'a Counters);

/// A task being executed; counted as ended when dropped.
pub(super) struct Executing<'a>(&'a Counters);

impl Counters {
    fn busy(&self) -> MutexGuard<'_, Busy> {
        // Nothing in here can be left half done by a panic.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task is in hand until the guard is dropped.
    #[must_use]
    pub(super) fn take(&self) -> InHandCount<'_> {
        self.in_hand.fetch_add(1, Relaxed);
        InHandCount(self)
    }

    /// A task is being executed until the guard is dropped.
    #[must_use]
    pub(super) fn execute(&self) -> Executing<'_> {
        let mut busy = self.busy();
        busy.executing += 1;
        if busy.executing == 1 {
            busy.since = Some(Instant::now());
        }
        Executing(self)
    }

    fn given_back(&self) -> MutexGuard<'_, Option<String>> {
        // It is set at once.
        self.given_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An attempt ended.
    pub(super) fn count(&self, verdict: &Verdict) {
        *self.given_back() = match verdict {
            Verdict::RetryAfter(_, reason) => Some(reason.clone()),
            Verdict::Done(..) | Verdict::Poison(_) | Verdict::Stale => None,
        };
        let counter = match verdict {
            Verdict::Done(_, cost) => {
                self.tokens.fetch_add(cost.tokens, Relaxed);
                &self.done
            }
            Verdict::RetryAfter(..) => &self.retried,
            Verdict::Poison(_) => &self.poison,
            Verdict::Stale => &self.stale,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// The counters now.
    #[must_use]
    pub(super) fn read(&self) -> StageCounters {
        let busy = {
            let busy = self.busy();
            busy.total + busy.since.map_or(Duration::ZERO, |since| since.elapsed())
        };
        StageCounters {
            done: self.done.load(Relaxed),
            retried: self.retried.load(Relaxed),
            poison: self.poison.load(Relaxed),
            stale: self.stale.load(Relaxed),
            in_hand: self.in_hand.load(Relaxed),
            busy_us: busy.as_micros() as u64,
            tokens: self.tokens.load(Relaxed),
            waits_for: self.given_back().clone(),
        }
    }
}

impl Drop for InHandCount<'_> {
    fn drop(&mut self) {
        self.0.in_hand.fetch_sub(1, Relaxed);
    }
}

impl Drop for Executing<'_> {
    fn drop(&mut self) {
        let mut busy = self.0.busy();
        busy.executing -= 1;
        if busy.executing == 0
            && let Some(since) = busy.since.take()
        {
            busy.total += since.elapsed();
        }
    }
}

/// Tells of the counters.
pub(super) struct Reporter {
    /// This process.
    pub worker: WorkerId,
    /// Where to.
    pub broker: Broker,
    /// Whom to tell whether the queue is there, and of progress.
    pub health: Health,
    /// What to tell of.
    pub stages: Stages,
}

impl Reporter {
    /// Consumes the counters, produces notices, metrics and health once in `every`. Waits for the timer; a
    /// notice that is lost is followed by another. Ends never.
    pub(super) async fn run(self, every: Duration) {
        let start = Instant::now();
        let mut timer = tokio::time::interval(every);
        let mut done_before = 0;
        for report in 0u64.. {
            timer.tick().await;
            let stages: BTreeMap<_, _> = self
                .stages
                .iter()
                .map(|(stage, (counters, executor))| (*stage, read(counters, &**executor)))
                .collect();
            stages.iter().for_each(|(stage, counters)| meter(*stage, counters));
            let done = stages.values().map(|counters| counters.done).sum();
            if done != done_before {
                self.health.progress();
                done_before = done;
            }
            if report % REPORTS_PER_PROBE == 0 {
                // Any answer will do; whether the key is there does not matter.
                let probe = self.broker.queue().get(subjects::POLICY_BUCKET, self.worker.as_str());
                self.health.set_connected(probe.await.is_ok());
            }
            let uptime_ms = start.elapsed().as_millis() as u64;
            let notice = WorkerNotice { worker: self.worker.to_string(), uptime_ms, stages };
            self.broker.notice(subjects::worker_notice(self.worker.as_str()), &notice).await;
        }
    }
}

/// A stage's counters. What the executor itself waits for says more than why the last task came back.
fn read(counters: &Counters, executor: &dyn Executor) -> StageCounters {
    let counters = counters.read();
    let waits_for = executor.waits_for().or(counters.waits_for);
    StageCounters { waits_for: waits_for.map(|what| shown(&what, MAX_SHOWN_BYTES)), ..counters }
}

/// Sets a stage's metrics.
fn meter(stage: Stage, counters: &StageCounters) {
    let stage = stage.name();
    let ends = [
        ("done", counters.done),
        ("retried", counters.retried),
        ("poison", counters.poison),
        ("stale", counters.stale),
    ];
    for (verdict, count) in ends {
        metrics::counter!("millrace_worker_tasks_total", "stage" => stage, "verdict" => verdict)
            .absolute(count);
    }
    metrics::gauge!("millrace_worker_tasks_in_hand", "stage" => stage).set(counters.in_hand as f64);
    metrics::counter!("millrace_worker_busy_microseconds_total", "stage" => stage).absolute(counters.busy_us);
    metrics::counter!("millrace_worker_tokens_total", "stage" => stage).absolute(counters.tokens);
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use millrace_schemas::Task;
    use tokio_util::sync::CancellationToken;

    use super::*;

    struct Wants(Option<&'static str>);

    #[async_trait]
    impl Executor for Wants {
        async fn execute(&self, _task: Task, _cancel: CancellationToken) -> Verdict {
            Verdict::Stale
        }

        fn waits_for(&self) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    #[test]
    fn what_is_waited_for_is_said_until_a_task_ends() {
        let counters = Counters::default();
        let says = |executor: &Wants| read(&counters, executor).waits_for;
        assert_eq!(says(&Wants(None)), None);
        counters.count(&Verdict::RetryAfter(Duration::ZERO, "the judge is away".into()));
        assert_eq!(says(&Wants(None)).as_deref(), Some("the judge is away"));
        assert_eq!(says(&Wants(Some("its server"))).as_deref(), Some("its server"));
        counters.count(&Verdict::Stale);
        assert_eq!(says(&Wants(None)), None);
        counters.count(&Verdict::RetryAfter(Duration::ZERO, "x".repeat(100_000)));
        assert!(says(&Wants(None)).is_some_and(|words| words.len() < 2 * MAX_SHOWN_BYTES));
    }
}
