//! The one loop for every stage and pool: pull, decode, check staleness, execute, settle.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use millrace_queue::port::{PoolPriority, Puller};
use millrace_queue::{Broker, Delivery, OpenError};
use millrace_schemas::limits::MAX_PULL_PRIORITY;
use millrace_schemas::subjects::{GENERATE_POOL, TRACEPARENT_HEADER};
use millrace_schemas::{PoolName, RunId, Stage, Task, TaskKey, WorkerId, limits, partition};
use millrace_telemetry::Tracer;
use millrace_telemetry::trace::task_span;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::attempt;
use super::counters::Counters;
use super::executor::{Executor, Verdict};
use super::failure::{Failure, Retry};
use super::in_flight::{InFlight, InFlightTask};
use super::panics::panic_message;
use super::policy_table::PolicyTable;
use super::settlement::Settlement;
use super::traced::TracedDelivery;

/// Between a failed request to the queue and the next.
const RECONNECT: Duration = Duration::from_millis(500);
/// For how long the known length of a pool's leases is trusted.
const LEASE_LENGTH_TTL: Duration = Duration::from_secs(30);
/// At this try of a task a panic is the task's own fault.
const PANIC_TRIES: u64 = 3;

/// One pool of one stage, as served by this process.
pub(super) struct PoolLoop {
    pub(super) stage: Stage,
    pub(super) pool: PoolName,
    /// Tasks in flight at most.
    pub(super) concurrency: u32,
    pub(super) executor: Arc<dyn Executor>,
    pub(super) worker: WorkerId,
    pub(super) broker: Broker,
    pub(super) policies: PolicyTable,
    /// Shared with all loops of this process.
    pub(super) in_flight: Arc<InFlight>,
    /// Shared with all loops of the stage.
    pub(super) counters: Arc<Counters>,
    /// Receives a span for each delivery.
    pub(super) tracer: Tracer,
}

impl PoolLoop {
    /// Consumes the tasks of the pool and of its partitions, produces outcomes. Waits for a free
    /// slot, then for tasks: it pulls exactly as many as slots are free, so that no task waits here
    /// while another worker is idle. Each task's end frees a slot. When the queue cannot be
    /// reached, it tries again. While the executor's gate is closed, it pulls none. When the number
    /// of partitions changes, it opens a new puller. Ends when `stop` fires, with the last task in
    /// flight.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.concurrency as usize));
        // Should this future be dropped, its tasks end with it.
        let mut in_flight = JoinSet::new();
        let mut partitions = self.partitions();
        let mut gate = self.executor.gate();
        while opens(&mut gate, &stop).await
            && let Some(mut puller) = self.puller(partitions, &stop).await
        {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = closes(&mut gate) => {}
                now = self.partitions_other_than(partitions) => partitions = now,
                () = self.pull_all(&mut *puller, &slots, &mut in_flight) => {}
            }
            puller.close().await;
        }
        // Each task has a slot, so all slots are free once no task is left.
        let all = slots.acquire_many(self.concurrency).await;
        drop(all.expect("nobody closes the semaphore"));
    }

    fn has_partitions(&self) -> bool {
        self.stage == Stage::Generate && self.pool.as_str() == GENERATE_POOL
    }

    /// Partitions of the pool now; 1 where it has none.
    fn partitions(&self) -> u32 {
        if self.has_partitions() { self.policies.partitions() } else { 1 }
    }

    /// Deliveries of a task that are no tries at most.
    fn hand_backs(&self) -> u64 {
        if self.partitions() > 1 { limits::HAND_BACKS.unsigned_abs() } else { 0 }
    }

    /// Waits until the pool has another number of partitions than `before`, and returns it.
    async fn partitions_other_than(&self, before: u32) -> u32 {
        let mut policies = self.policies.clone();
        loop {
            let now = self.partitions();
            if now != before {
                return now;
            }
            if !self.has_partitions() || !policies.partitions_changed().await {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The pool and its partitions, each with this worker's pull priority.
    fn pull_priorities(&self, partitions: u32) -> Vec<PoolPriority> {
        let priorities = partition::pull_priorities(&self.worker, partitions).into_iter();
        let own = (self.pool.clone(), MAX_PULL_PRIORITY / 2);
        priorities.chain([own]).map(|(pool, priority)| PoolPriority { pool, priority }).collect()
    }

    /// A puller; `None` once `stop` fires.
    async fn puller(&self, partitions: u32, stop: &CancellationToken) -> Option<Box<dyn Puller>> {
        while !stop.is_cancelled() {
            let queue = self.broker.queue();
            let opened = match partitions {
                0 | 1 => queue.puller(self.stage, &self.pool),
                _ => queue.priority_puller(self.stage, self.pull_priorities(partitions)),
            };
            match stop.run_until_cancelled(opened).await? {
                Ok(puller) => return Some(puller),
                Err(error) => {
                    tracing::warn!(stage = %self.stage, pool = %self.pool, %error, "cannot pull yet")
                }
            }
            stop.run_until_cancelled(tokio::time::sleep(RECONNECT)).await?;
        }
        None
    }

    async fn pull_all(
        self: &Arc<Self>,
        puller: &mut dyn Puller,
        slots: &Arc<Semaphore>,
        in_flight: &mut JoinSet<()>,
    ) {
        let mut fetched = None::<Instant>;
        loop {
            let mut free = free_slots(slots).await;
            match puller.pull(free.num_permits()).await {
                Ok(deliveries) => {
                    while in_flight.try_join_next().is_some() {}
                    // After a pull the pool exists, and so does the length of its leases.
                    if fetched.is_none_or(|fetched| fetched.elapsed() >= LEASE_LENGTH_TTL) {
                        fetched = Some(Instant::now());
                        in_flight.spawn(self.clone().fetch_lease_length());
                    }
                    for delivery in deliveries {
                        let slot = free.split(1).expect("a pull returns at most what it was asked for");
                        let this = self.clone();
                        // Boxed, or the runtime would copy all of it three times.
                        in_flight.spawn(Box::pin(async move {
                            this.handle(delivery).await;
                            drop(slot);
                        }));
                    }
                }
                Err(error) => {
                    tracing::warn!(stage = %self.stage, pool = %self.pool, %error, "pull failed");
                    tokio::time::sleep(RECONNECT).await;
                }
            }
        }
    }

    /// Fetches the length of the pool's leases from the queue, where it can be changed at any time.
    async fn fetch_lease_length(self: Arc<Self>) {
        match self.broker.queue().ack_wait(self.stage, &self.pool).await {
            Ok(Some(ack_wait)) => self.in_flight.note_lease_length(ack_wait),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(stage = %self.stage, pool = %self.pool, %error, "lease length not known");
            }
        }
    }

    /// One delivery, from its arrival to its settlement.
    async fn handle(&self, delivery: Delivery) {
        let _count = self.counters.count_in_flight();
        let traced = TracedDelivery::arrived(&self.tracer, &delivery);
        let in_flight = self.in_flight.add(delivery.lease.clone());
        let mut execution = Execution { task: None, started: Instant::now() };
        let processed = self.process_delivery(&delivery, &in_flight, &mut execution);
        let processed = AssertUnwindSafe(processed).catch_unwind().await;
        let hand_backs = self.hand_backs();
        let tries = delivery.attempt.saturating_sub(hand_backs);
        let processed = processed.unwrap_or_else(|panic| Some(after_panic(&*panic, tries)));
        let Some(verdict) = processed else { return self.pass_on(&delivery).await };
        self.counters.count(&verdict);
        if let Some(traced) = traced {
            traced.ended(&self.tracer, &self.worker, &verdict);
        }
        let settlement = Settlement {
            broker: &self.broker,
            worker: &self.worker,
            delivery: &delivery,
            in_flight: &in_flight,
            elapsed: execution.started.elapsed(),
            task: execution.task,
            hand_backs,
        };
        settlement.settle(verdict).await;
    }

    /// Returns a task to the queue for another worker, and leaves it the time to take it. The task
    /// comes back here if there is none.
    async fn pass_on(&self, delivery: &Delivery) {
        let subject = &delivery.message.subject;
        tracing::debug!(subject, "task passed on to another worker");
        if let Err(error) = delivery.lease.retry_after(Duration::ZERO).await {
            tracing::warn!(subject, %error, "task not passed on; the queue delivers it again");
        }
        tokio::time::sleep(Duration::from_millis(limits::PASS_ON_MS)).await;
    }

    /// `None` for a task that is passed on to another worker.
    async fn process_delivery(
        &self,
        delivery: &Delivery,
        in_flight: &InFlightTask,
        execution: &mut Execution,
    ) -> Option<Verdict> {
        let task = match self.broker.open_task(delivery).await {
            Ok(task) => task,
            Err(error @ OpenError::Undecodable(_)) => return Some(Verdict::Poison(error.to_string())),
            Err(error @ OpenError::Unavailable(_)) => return Some(Failure::soon(error).into()),
        };
        if delivery.attempt == 1 && self.executor.passes_on(&task) {
            return None;
        }
        Some(self.process_task(task, delivery, in_flight, execution).await)
    }

    async fn process_task(
        &self,
        task: Task,
        delivery: &Delivery,
        in_flight: &InFlightTask,
        execution: &mut Execution,
    ) -> Verdict {
        in_flight.describe(&task);
        let (run, key, version, evaluate) = (task.run.clone(), task.key, task.version, task.evaluate);
        if self.is_stale(&task).await {
            return Verdict::Stale;
        }
        let traceparent = delivery.message.header(TRACEPARENT_HEADER);
        let span = task_span(traceparent, run.as_str(), &task.key);
        let fingerprint = task.request_fingerprint();
        *execution = Execution { task: Some((run.clone(), key, fingerprint)), started: Instant::now() };
        let _executing = self.counters.count_executing();
        let executed = self.execute(task, in_flight).instrument(span);
        match in_flight.cancel.run_until_cancelled(executed).await {
            Some(verdict) => verdict,
            None if self.policies.is_stale(&run, key, version, evaluate) => Verdict::Stale,
            None => Verdict::RetryAfter(Duration::ZERO, "its worker handed it back".to_owned()),
        }
    }

    /// Reads the table, or the policy's key itself where the watch has not delivered it yet.
    async fn is_stale(&self, task: &Task) -> bool {
        let Task { run, key, version, evaluate, .. } = task;
        if self.policies.knows(run) {
            return self.policies.is_stale(run, *key, *version, *evaluate);
        }
        match self.broker.seen_policy(run).await {
            Ok(policy) => policy.is_some_and(|policy| policy.is_stale(*key, *version, *evaluate)),
            Err(error) => {
                // To execute a stale task costs time and nothing else.
                tracing::debug!(%run, %error, "policy not known yet");
                false
            }
        }
    }

    async fn execute(&self, task: Task, in_flight: &InFlightTask) -> Verdict {
        let limit = Duration::from_millis(limits::attempt_ms(self.stage));
        let execution = async {
            let mut task = task;
            match self.broker.resolve(&mut task).await {
                Ok(()) => self.executor.execute(task, in_flight.cancel.clone()).await,
                // What is missing is missing by a failure of machines: no reward follows from it.
                Err(error) => Failure::soon(error).into(),
            }
        };
        attempt::within(limit, execution).await.unwrap_or_else(|| {
            Failure::Retry(Retry::Restart, format!("no answer within {} s", limit.as_secs())).into()
        })
    }
}

/// What the settlement needs of an execution. It outlives a panic of the executor.
struct Execution {
    /// Run, key and request fingerprint; `None` until the task is decoded.
    task: Option<(RunId, TaskKey, u64)>,
    started: Instant,
}

/// Waits until tasks may be pulled; `false` once `stop` fires.
async fn opens(gate: &mut Option<watch::Receiver<bool>>, stop: &CancellationToken) -> bool {
    let Some(gate) = gate else { return !stop.is_cancelled() };
    // A gate whose sender is gone stays as it is.
    stop.run_until_cancelled(gate.wait_for(|open| *open)).await.is_some()
}

/// Waits until tasks may no longer be pulled.
async fn closes(gate: &mut Option<watch::Receiver<bool>>) {
    let closed = match gate {
        Some(gate) => gate.wait_for(|open| !open).await.is_ok(),
        None => false,
    };
    if !closed {
        std::future::pending::<()>().await;
    }
}

/// Waits for a slot, and takes all that are free by then.
async fn free_slots(slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let mut free = slots.clone().acquire_owned().await.expect("nobody closes the semaphore");
    if let Ok(more) = slots.clone().try_acquire_many_owned(slots.available_permits() as u32) {
        free.merge(more);
    }
    free
}

/// The first panics may be the machine's fault. The third one is the task's.
fn after_panic(panic: &(dyn Any + Send), tries: u64) -> Verdict {
    let reason = format!("its execution panicked: {}", panic_message(panic));
    let failure = if tries < PANIC_TRIES {
        Failure::Retry(Retry::Restart, reason)
    } else {
        Failure::Impossible(reason)
    };
    failure.into()
}
