//! What every queue must do. The same cases run on memory and on a real nats-server; a case fails when the
//! behaviour that it names is broken.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_schemas::envelope::encode;
use millrace_schemas::generate::{GenerateTask, Sampling};
use millrace_schemas::{PolicyVersion, PoolName, RolloutId, RunId, Stage, Task, TaskBody, TaskKey, subjects};

use crate::broker::Broker;
use crate::port::{Delivery, Message, Puller, Put, Queue};
use crate::settings::QueueSettings;
use millrace_objects::Objects;

pub mod tasks;
pub mod leases;
pub mod priorities;
pub mod dead;
pub mod log;
pub mod trimmed;
pub mod keys;
pub mod claims;
pub mod trajectories;

/// Time within which anything must happen that must happen at all.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// Lease of the cases in which leases end.
pub const SHORT_LEASE: Duration = Duration::from_millis(600);
/// Deliveries before a task is exhausted, in all cases.
pub const MAX_DELIVER: i64 = 3;

/// A queue under test with whatever keeps it alive.
pub struct Fixture {
    /// The queue.
    pub queue: Arc<dyn Queue>,
    /// Types on top of it.
    pub broker: Broker,
    /// Dropped after the case.
    pub guard: Box<dyn Any + Send>,
}

impl Fixture {
    /// A queue, with an object store in memory.
    #[must_use]
    pub fn new(queue: Arc<dyn Queue>, guard: Box<dyn Any + Send>) -> Self {
        let broker = Broker::new(queue.clone(), Objects::memory());
        Self { queue, broker, guard }
    }

    async fn puller(&self) -> Box<dyn Puller> {
        self.queue.ensure_pool(Stage::Generate, &pool()).await.expect("the pool is made");
        self.queue.puller(Stage::Generate, &pool()).await.expect("a puller")
    }

    async fn put(&self, tasks: &[Task]) -> Vec<Put> {
        let put = self.broker.put_tasks(tasks).await;
        put.into_iter().map(|put| put.expect("the queue stores it")).collect()
    }

    /// Repeats the put of a task until the queue takes it: the last delivery was settled without
    /// waiting for the server.
    async fn put_until_queued(&self, task: &Task) {
        until("the task can be requeued", async || {
            self.put(std::slice::from_ref(task)).await == [Put::Queued]
        })
        .await;
    }
}

/// Settings in which leases end soon.
#[must_use]
pub fn short() -> QueueSettings {
    QueueSettings { ack_wait: SHORT_LEASE, max_deliver: MAX_DELIVER, ..QueueSettings::default() }
}

/// Settings in which no lease ends during a case.
#[must_use]
pub fn long() -> QueueSettings {
    QueueSettings { max_deliver: MAX_DELIVER, ..QueueSettings::default() }
}

/// One test per case; `$make` is an async function from [`QueueSettings`] to a [`Fixture`].
#[macro_export]
macro_rules! conformance_tests {
    ($make:path) => {
        $crate::conformance_tests!(@ $make, long, tasks:
            a_task_is_put_once, two_workers_share_a_pool, a_pull_takes_no_more_than_the_free_slots,
            a_dropped_pull_loses_nothing, closing_gives_back, a_puller_waits_for_its_pool,
            a_purge_drops_one_version);
        $crate::conformance_tests!(@ $make, short, leases:
            a_silent_worker_loses_its_task, heartbeats_keep_a_task, a_late_acknowledgement_is_harmless);
        $crate::conformance_tests!(@ $make, long, leases: a_task_given_back_waits);
        $crate::conformance_tests!(@ $make, long, priorities:
            the_first_in_priority_gets_the_task, a_full_or_lost_first_in_priority_is_passed_over,
            one_slot_serves_all_partitions, slots_are_never_overrun, closing_gives_back_of_all_partitions,
            a_dropped_priority_pull_loses_nothing);
        $crate::conformance_tests!(@ $make, short, dead: a_silent_task_is_exhausted);
        $crate::conformance_tests!(@ $make, long, dead:
            a_returned_task_is_exhausted, a_purged_task_is_not_exhausted,
            an_unreadable_task_is_buried_with_its_bytes, a_letter_is_buried_once, a_dead_letter_is_tried_again,
            a_letter_of_another_stage_is_not_tried_again);
        $crate::conformance_tests!(@ $make, long, log:
            the_first_entry_with_an_id_wins, a_task_put_again_is_answered_again, the_log_is_read_in_order_from_anywhere,
            an_unreadable_entry_does_not_stop_the_log, a_dropped_read_loses_nothing, notices_reach_who_listens);
        $crate::conformance_tests!(@ $make, long, trimmed:
            what_is_trimmed_is_read_from_segments, trimming_goes_on_from_wherever_it_stopped,
            nothing_is_trimmed_that_no_segment_proves, segments_of_a_lost_future_are_passed_by);
        $crate::conformance_tests!(@ $make, long, keys:
            a_key_is_compared_and_set, a_watcher_sees_values_and_changes, a_policy_never_goes_back,
            an_unreadable_policy_is_overwritten, policies_are_watched);
        $crate::conformance_tests!(@ $make, long, claims:
            a_large_task_travels_by_claim, a_large_outcome_travels_by_claim, what_is_decided_on_stands_in_the_log_itself, a_lost_payload_is_poison);
        $crate::conformance_tests!(@ $make, long, trajectories:
            entries_are_read_by_position, a_task_names_what_was_said_before, a_batch_names_its_turns,
            a_reference_that_gives_nothing_is_told);
    };
    (@ $make:path, $settings:ident, $module:ident: $($case:ident),*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let settings = $crate::conformance::$settings();
                $crate::conformance::$module::$case($make(settings).await).await;
            }
        )*
    };
}

fn pool() -> PoolName {
    "default".parse().expect("a pool name")
}

fn run() -> RunId {
    "demo".parse().expect("a run name")
}

/// A task of rollout `group`, start version `version`, with a context of `tokens` tokens.
fn task(group: u64, version: u64, tokens: usize) -> Task {
    let rollout = RolloutId { group, index: 0, attempt: 0 };
    Task {
        run: run(),
        key: TaskKey::Generate { rollout, turn: 1 },
        pool: pool(),
        version: PolicyVersion(version),
        evaluate: false,
        body: TaskBody::Generate(GenerateTask {
            min_version: PolicyVersion(version),
            ..GenerateTask::new((0..tokens as u32).collect(), 1, Sampling::at(1.0), 1)
        }),
    }
}

fn tasks(count: u64) -> Vec<Task> {
    (0..count).map(|group| task(group, 0, 4)).collect()
}

fn message(task: &Task, payload: Bytes) -> Message {
    let subject = subjects::task(&task.pool, &task.run, task.version, task.key);
    Message { subject, payload, headers: vec![] }
}

/// Pulls until `count` tasks are there.
async fn pull(puller: &mut Box<dyn Puller>, count: usize) -> Vec<Delivery> {
    let mut pulled = Vec::new();
    while pulled.len() < count {
        let more = soon("a task is delivered", puller.pull(count - pulled.len())).await;
        pulled.extend(more.expect("the queue delivers"));
    }
    pulled
}

async fn pull_one(puller: &mut Box<dyn Puller>) -> Delivery {
    pull(puller, 1).await.remove(0)
}

/// Whether nothing is delivered for a while. Can only prove presence.
async fn is_quiet(puller: &mut Box<dyn Puller>) -> bool {
    tokio::time::timeout(Duration::from_millis(150), puller.pull(1)).await.is_err()
}

/// What `future` gives, if it does in time.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// Waits until `condition` holds.
async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

fn payload(task: &Task) -> Bytes {
    encode(task)
}
