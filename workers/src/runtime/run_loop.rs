//! The one loop for every stage and pool: pull, decode, check staleness, execute, settle.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use millrace_queue::port::{Puller, Ranked};
use millrace_queue::{Broker, Delivery, OpenError};
use millrace_schemas::limits::MAX_RANK;
use millrace_schemas::subjects::{GENERATE_POOL, TRACEPARENT_HEADER};
use millrace_schemas::{PoolName, RunId, Stage, Task, TaskKey, WorkerId, limits, partition};
use millrace_telemetry::trace::task_span;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::counters::Counters;
use super::executor::{Executor, Verdict};
use super::in_flight::{Hold, InHand};
use super::panics::panic_message;
use super::policy_table::PolicyTable;
use super::settlement::Settlement;

/// Between a failed request to the queue and the next.
const RECONNECT: Duration = Duration::from_millis(500);
/// After which the length of a pool's leases is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// For how long a task is given back whose payload, or what it names, cannot be fetched.
const REFETCH: Duration = Duration::from_secs(2);
/// For how long a task is given back on which the executor panicked.
const PANIC_RETRY: Duration = Duration::from_secs(1);
/// For how long a task is given back that did not end in time.
const HUNG_RETRY: Duration = Duration::from_secs(1);
/// Deliveries of a task after which a panic is the task's own fault.
const PANIC_ATTEMPTS: u64 = 3;

/// One pool of one stage, as served by this process.
pub(super) struct PoolLoop {
    /// The stage.
    pub stage: Stage,
    /// The pool.
    pub pool: PoolName,
    /// Tasks in hand at most.
    pub concurrency: u32,
    /// Who does them.
    pub executor: Arc<dyn Executor>,
    /// This process.
    pub worker: WorkerId,
    /// Where tasks come from and outcomes go.
    pub broker: Broker,
    /// What is stale.
    pub policies: PolicyTable,
    /// All tasks in hand.
    pub in_hand: Arc<InHand>,
    /// The stage's counters.
    pub counters: Arc<Counters>,
}

impl PoolLoop {
    /// Consumes the pool's tasks, and those of its partitions, produces outcomes. Waits for a free slot, then for tasks: exactly as many as
    /// slots are free, so that none waits here while another worker is idle. Freed by each task's end. When
    /// the queue cannot be reached it tries again. When a run comes or goes that has partitions it pulls anew. Ends when `stop` fires; the tasks in hand then go on, and
    /// the future ends with the last of them.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let slots = Arc::new(Semaphore::new(self.concurrency as usize));
        // What is in hand ends with this future, should it be dropped.
        let mut in_hand = JoinSet::new();
        let mut partitions = self.partitions();
        while let Some(mut puller) = self.puller(partitions, &stop).await {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                now = self.partitions_other_than(partitions) => partitions = now,
                () = self.pull_all(&mut *puller, &slots, &mut in_hand) => {}
            }
            puller.close().await;
        }
        // Tasks hold a slot each, so all slots are free when none is left.
        let all = slots.acquire_many(self.concurrency).await;
        drop(all.expect("nobody closes the semaphore"));
    }

    /// Whether the pool may have partitions.
    fn is_parted(&self) -> bool {
        self.stage == Stage::Generate && self.pool.as_str() == GENERATE_POOL
    }

    /// How many partitions the pool has now.
    fn partitions(&self) -> u32 {
        if self.is_parted() { self.policies.partitions() } else { 1 }
    }

    /// Waits until the pool has another number of partitions; says how many.
    async fn partitions_other_than(&self, before: u32) -> u32 {
        let mut policies = self.policies.clone();
        loop {
            let now = self.partitions();
            if now != before {
                return now;
            }
            if !self.is_parted() || !policies.partitions_changed().await {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The pool and its partitions, with this worker's ranks.
    fn ranked(&self, partitions: u32) -> Vec<Ranked> {
        let ranks = partition::ranks(&self.worker, partitions).into_iter();
        let own = (self.pool.clone(), MAX_RANK / 2);
        ranks.chain([own]).map(|(pool, rank)| Ranked { pool, rank }).collect()
    }

    /// A puller; `None` once `stop` fires.
    async fn puller(&self, partitions: u32, stop: &CancellationToken) -> Option<Box<dyn Puller>> {
        while !stop.is_cancelled() {
            let queue = self.broker.queue();
            let attempt = match partitions {
                0 | 1 => queue.puller(self.stage, &self.pool),
                _ => queue.ranked_puller(self.stage, self.ranked(partitions)),
            };
            match stop.run_until_cancelled(attempt).await? {
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
        in_hand: &mut JoinSet<()>,
    ) {
        let mut asked = None::<Instant>;
        loop {
            let mut free = free_slots(slots).await;
            match puller.pull(free.num_permits()).await {
                Ok(deliveries) => {
                    while in_hand.try_join_next().is_some() {}
                    // Now the pool is there, and its leases are those that count.
                    if asked.is_none_or(|asked| asked.elapsed() >= ASK_AGAIN) {
                        asked = Some(Instant::now());
                        in_hand.spawn(self.clone().ask_for_leases());
                    }
                    for delivery in deliveries {
                        let slot = free.split(1).expect("a pull gives at most what was asked for");
                        let this = self.clone();
                        in_hand.spawn(async move {
                            this.handle(delivery).await;
                            drop(slot);
                        });
                    }
                }
                Err(error) => {
                    tracing::warn!(stage = %self.stage, pool = %self.pool, %error, "pull failed");
                    tokio::time::sleep(RECONNECT).await;
                }
            }
        }
    }

    /// Asks the queue how long the pool's leases are: whoever made the pool has decided, and may have since.
    async fn ask_for_leases(self: Arc<Self>) {
        match self.broker.queue().ack_wait(self.stage, &self.pool).await {
            Ok(Some(ack_wait)) => self.in_hand.leases_last(ack_wait),
            Ok(None) => {}
            Err(error) => tracing::warn!(stage = %self.stage, pool = %self.pool, %error, "leases not known"),
        }
    }

    /// One delivery, from its arrival to its settlement.
    async fn handle(&self, delivery: Delivery) {
        let _count = self.counters.take();
        let hold = self.in_hand.hold(delivery.lease.clone());
        let mut attempt = Attempt { task: None, started: Instant::now() };
        let judged = AssertUnwindSafe(self.judge(&delivery, &hold, &mut attempt)).catch_unwind().await;
        let verdict = judged.unwrap_or_else(|panic| after_panic(&*panic, delivery.attempt));
        self.counters.count(&verdict);
        let settlement = Settlement {
            broker: &self.broker,
            worker: &self.worker,
            delivery: &delivery,
            hold: &hold,
            elapsed: attempt.started.elapsed(),
            task: attempt.task,
        };
        settlement.settle(verdict).await;
    }

    async fn judge(&self, delivery: &Delivery, hold: &Hold, attempt: &mut Attempt) -> Verdict {
        let task = match self.broker.open_task(delivery).await {
            Ok(task) => task,
            Err(error @ OpenError::Undecodable(_)) => return Verdict::Poison(error.to_string()),
            Err(error @ OpenError::Unavailable(_)) => return Verdict::RetryAfter(REFETCH, error.to_string()),
        };
        hold.describe(&task);
        let (run, key, version, evaluate) = (task.run.clone(), task.key, task.version, task.evaluate);
        if self.is_stale(&task).await {
            return Verdict::Stale;
        }
        let traceparent = delivery.message.header(TRACEPARENT_HEADER);
        let span = task_span(traceparent, run.as_str(), &task.key);
        *attempt = Attempt { task: Some((run.clone(), task.key, task.question())), started: Instant::now() };
        let _executing = self.counters.execute();
        let execution = self.execute(task, hold).instrument(span);
        match hold.cancel.run_until_cancelled(execution).await {
            Some(verdict) => verdict,
            None if self.policies.is_stale(&run, key, version, evaluate) => Verdict::Stale,
            None => Verdict::RetryAfter(Duration::ZERO, "this worker leaves".to_owned()),
        }
    }

    /// Asks the table, and the key itself where the watch has not brought it yet.
    async fn is_stale(&self, task: &Task) -> bool {
        let Task { run, key, version, evaluate, .. } = task;
        if self.policies.knows(run) {
            return self.policies.is_stale(run, *key, *version, *evaluate);
        }
        match self.broker.seen_policy(run).await {
            Ok(policy) => policy.is_some_and(|policy| policy.is_stale(*key, *version, *evaluate)),
            Err(error) => {
                // Work that is of no use costs time and nothing else.
                tracing::debug!(%run, %error, "policy not known yet");
                false
            }
        }
    }

    async fn execute(&self, task: Task, hold: &Hold) -> Verdict {
        let limit = Duration::from_millis(limits::attempt_ms(self.stage));
        let execution = async {
            let mut task = task;
            match self.broker.resolve(&mut task).await {
                Ok(()) => self.executor.execute(task, hold.cancel.clone()).await,
                // Whatever is missing, it is the machines' failure: no reward follows from it.
                Err(error) => Verdict::RetryAfter(REFETCH, error.to_string()),
            }
        };
        tokio::time::timeout(limit, execution).await.unwrap_or_else(|_| {
            Verdict::RetryAfter(HUNG_RETRY, format!("no answer within {} s", limit.as_secs()))
        })
    }
}

/// What is known of an attempt when it ends, however it ends.
struct Attempt {
    task: Option<(RunId, TaskKey, u64)>,
    started: Instant,
}

/// Waits for a slot, and takes all that are free by then.
async fn free_slots(slots: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    let mut free = slots.clone().acquire_owned().await.expect("nobody closes the semaphore");
    if let Ok(more) = slots.clone().try_acquire_many_owned(slots.available_permits() as u32) {
        free.merge(more);
    }
    free
}

/// A panic may be the machine's fault. The third one is the task's.
fn after_panic(panic: &(dyn Any + Send), attempt: u64) -> Verdict {
    let reason = format!("its execution panicked: {}", panic_message(panic));
    if attempt < PANIC_ATTEMPTS { Verdict::RetryAfter(PANIC_RETRY, reason) } else { Verdict::Poison(reason) }
}
