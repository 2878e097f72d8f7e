//! What this process did, by stage: as notices (`mr.notice.worker.<id>`), as `/metrics`, for
//! `/healthz`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_queue::Broker;
use millrace_schemas::limits::MAX_SHOWN_BYTES;
use millrace_schemas::notice::{Machine, StageCounters, WorkerNotice};
use millrace_schemas::text::shown;
use millrace_schemas::{Stage, WorkerId, subjects};
use millrace_telemetry::Health;
use tokio::sync::watch;
use tokio::time::Instant;

use super::drain::Departure;
use super::executor::{Executor, Verdict};
use super::time_division::TimeDivision;

/// Reports between two checks that the queue can be reached.
const REPORTS_PER_PROBE: u64 = 10;

/// The counters of one stage.
#[derive(Debug, Default)]
pub(super) struct Counters {
    done: AtomicU64,
    retried: AtomicU64,
    poison: AtomicU64,
    stale: AtomicU64,
    in_flight: AtomicU64,
    tokens: AtomicU64,
    busy: Mutex<BusyTime>,
    /// Why the last task returned to the queue; `None` once another one ended.
    retry_reason: Mutex<Option<String>>,
}

/// The counters and the executor of each stage.
pub(super) type Stages = BTreeMap<Stage, (Arc<Counters>, Arc<dyn Executor>)>;

/// Time in which at least one task was being executed.
#[derive(Debug, Default)]
struct BusyTime {
    executing: u32,
    /// Start of the present busy period; `None` while idle.
    since: Option<Instant>,
    /// Sum of the busy periods that have ended.
    total: Duration,
}

/// Counts a task as in flight until it is dropped.
pub(super) struct InFlightCount<'a>(&'a Counters);

/// Counts a task as executing until it is dropped.
pub(super) struct ExecutingCount<'a>(&'a Counters);

impl Counters {
    fn busy(&self) -> MutexGuard<'_, BusyTime> {
        // A panic cannot leave it half changed.
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub(super) fn count_in_flight(&self) -> InFlightCount<'_> {
        self.in_flight.fetch_add(1, Relaxed);
        InFlightCount(self)
    }

    #[must_use]
    pub(super) fn count_executing(&self) -> ExecutingCount<'_> {
        let mut busy = self.busy();
        busy.executing += 1;
        if busy.executing == 1 {
            busy.since = Some(Instant::now());
        }
        ExecutingCount(self)
    }

    fn retry_reason(&self) -> MutexGuard<'_, Option<String>> {
        // A panic cannot leave it half changed.
        self.retry_reason.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the end of an execution.
    pub(super) fn count(&self, verdict: &Verdict) {
        *self.retry_reason() = match verdict {
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
            in_hand: self.in_flight.load(Relaxed),
            busy_us: busy.as_micros() as u64,
            tokens: self.tokens.load(Relaxed),
            waits_for: self.retry_reason().clone(),
            slots: 0,
        }
    }
}

impl Drop for InFlightCount<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Drop for ExecutingCount<'_> {
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

/// Publishes the counters of all stages.
pub(super) struct Reporter {
    pub(super) start: Instant,
    pub(super) worker: WorkerId,
    pub(super) broker: Broker,
    /// Gets progress, and whether the queue can be reached.
    pub(super) health: Health,
    pub(super) stages: Stages,
    /// Tasks in flight at most, by stage.
    pub(super) slots: BTreeMap<Stage, u64>,
    pub(super) machine: watch::Receiver<Option<Machine>>,
    pub(super) departure: Departure,
    pub(super) member_of: Option<String>,
    pub(super) time_division: Option<TimeDivision>,
}

/// A worker that leaves waits so long for its last notice to go out, at most.
const LAST_NOTICE: Duration = Duration::from_secs(1);

impl Reporter {
    /// Consumes the counters, produces notices, metrics and health once in `every`. Waits for the
    /// timer. A notice that is lost is followed by another. Never ends.
    pub(super) async fn run(self: Arc<Self>, every: Duration) {
        let mut timer = tokio::time::interval(every);
        let mut done_before = 0;
        for report in 0u64.. {
            timer.tick().await;
            let notice = self.notice();
            notice.stages.iter().for_each(|(stage, counters)| set_metrics(*stage, counters));
            let done = notice.stages.values().map(|counters| counters.done).sum();
            if done != done_before {
                self.health.progress();
                done_before = done;
            }
            if report % REPORTS_PER_PROBE == 0 {
                self.health.set_connected(self.probe().await);
            }
            self.send(&notice).await;
        }
    }

    /// Reports once more, at the end: a worker without tasks leaves before its next report, and
    /// would be missed instead of known to have left.
    pub(super) async fn last(&self) {
        self.health.set_leaving();
        let sent = async {
            self.send(&self.notice()).await;
            // Its reply comes after the notice has reached the server.
            self.probe().await
        };
        // Nothing depends on it.
        let _ = tokio::time::timeout(LAST_NOTICE, sent).await;
    }

    /// Whether the queue can be reached. Any reply will do; whether the key exists does not matter.
    async fn probe(&self) -> bool {
        self.broker.queue().get(subjects::POLICY_BUCKET, self.worker.as_str()).await.is_ok()
    }

    async fn send(&self, notice: &WorkerNotice) {
        self.broker.notice(subjects::worker_notice(self.worker.as_str()), notice).await;
    }

    fn notice(&self) -> WorkerNotice {
        let stages = self.stages.iter().map(|(stage, (counters, executor))| {
            let slots = self.slots.get(stage).copied().unwrap_or_default();
            (*stage, StageCounters { slots, ..read(counters, &**executor) })
        });
        WorkerNotice {
            worker: self.worker.to_string(),
            uptime_ms: self.start.elapsed().as_millis() as u64,
            pool: self.member_of.clone(),
            leaving: self.departure.requested().is_cancelled(),
            stands_by: false,
            device: self.time_division.as_ref().map(TimeDivision::now),
            machine: self.machine.borrow().clone(),
            stages: stages.collect(),
        }
    }
}

/// A stage's counters. The executor's own reason to wait takes precedence over that of the last
/// retry.
fn read(counters: &Counters, executor: &dyn Executor) -> StageCounters {
    let counters = counters.read();
    let waits_for = executor.waits_for().or(counters.waits_for);
    StageCounters { waits_for: waits_for.map(|what| shown(&what, MAX_SHOWN_BYTES)), ..counters }
}

fn set_metrics(stage: Stage, counters: &StageCounters) {
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
    // Dashboards read this name.
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

    struct WaitingExecutor(Option<&'static str>);

    #[async_trait]
    impl Executor for WaitingExecutor {
        async fn execute(&self, _task: Task, _cancel: CancellationToken) -> Verdict {
            Verdict::Stale
        }

        fn waits_for(&self) -> Option<String> {
            self.0.map(str::to_owned)
        }
    }

    #[test]
    fn the_reason_of_a_retry_is_reported_until_a_task_ends() {
        let counters = Counters::default();
        let reported = |executor: &WaitingExecutor| read(&counters, executor).waits_for;
        assert_eq!(reported(&WaitingExecutor(None)), None);
        counters.count(&Verdict::RetryAfter(Duration::ZERO, "the judge is away".into()));
        assert_eq!(reported(&WaitingExecutor(None)).as_deref(), Some("the judge is away"));
        assert_eq!(reported(&WaitingExecutor(Some("its server"))).as_deref(), Some("its server"));
        counters.count(&Verdict::Stale);
        assert_eq!(reported(&WaitingExecutor(None)), None);
        counters.count(&Verdict::RetryAfter(Duration::ZERO, "x".repeat(100_000)));
        assert!(reported(&WaitingExecutor(None)).is_some_and(|reason| reason.len() < 2 * MAX_SHOWN_BYTES));
    }
}
