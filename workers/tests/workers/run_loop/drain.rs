//! The drain: tasks are finished, or returned to the queue.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use millrace_schemas::subjects::GENERATE_POOL;
use millrace_schemas::{OutcomeBody, Stage, Task};
use millrace_workers::{Executor, PoolSettings, Verdict};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::run_loop::partitions::turn_of;
use crate::run_loop::support::{Bench, begun_turn, done, eventually, on_both_queues, soon, task};

on_both_queues!(
    what_is_in_hand_is_finished,
    nothing_new_is_begun,
    a_begun_turn_is_handed_back,
    an_executor_that_hangs_hands_nothing_back,
);

mod before_leases_end {
    use super::what_takes_too_long_is_handed_back;
    use crate::run_loop::support::on_both_queues;

    on_both_queues!(LONG_LEASES: what_takes_too_long_is_handed_back);
}

async fn what_is_in_hand_is_finished(bench: Bench) {
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let worker = bench.worker(1, Duration::from_secs(20), move |_, _| {
        told.notify_one();
        async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            done()
        }
        .boxed()
    });
    bench.put(&task(1, 0)).await;
    soon("the task is begun", &begun).await;
    let told_to_leave = Instant::now();
    assert!(worker.leave().await);
    assert!(told_to_leave.elapsed() < Duration::from_secs(10), "it does not wait for the grace to end");
    assert_eq!(bench.outcomes().await.len(), 1);
    bench.forgotten(&task(1, 0)).await;
}

async fn what_takes_too_long_is_handed_back(bench: Bench) {
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let slow = bench.worker(4, Duration::from_millis(100), move |_, _| {
        told.notify_one();
        std::future::pending().boxed()
    });
    bench.put(&task(1, 0)).await;
    soon("the task is begun", &begun).await;
    assert!(slow.leave().await, "a returned task is settled");
    assert!(bench.events().await.is_empty());

    // At once, and not when the lease ends.
    let other = bench.worker(4, Duration::from_secs(5), |_, _| async { done() }.boxed());
    eventually("an outcome", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    assert!(other.leave().await);
}

async fn nothing_new_is_begun(bench: Bench) {
    let worker = bench.worker(4, Duration::from_secs(5), |_, _| async { done() }.boxed());
    bench.put(&task(1, 0)).await;
    eventually("an outcome", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    assert!(worker.leave().await);
    bench.put(&task(2, 0)).await;
    // It is free for the next worker at once: nothing was pulled and kept.
    let next = bench.worker(4, Duration::from_secs(5), |_, _| async { done() }.boxed());
    eventually("the second outcome", async || (bench.outcomes().await.len() == 2).then_some(())).await;
    assert!(next.leave().await);
}

/// Samples a turn without end. Asked to hand back, it returns two tokens, unless it hangs.
struct Endless {
    begun: Arc<Notify>,
    leaving: CancellationToken,
    hangs: bool,
}

#[async_trait]
impl Executor for Endless {
    async fn execute(&self, _: Task, _: CancellationToken) -> Verdict {
        self.begun.notify_one();
        self.leaving.cancelled().await;
        if self.hangs {
            return std::future::pending().await;
        }
        begun_turn()
    }

    fn hand_back(&self) -> bool {
        self.leaving.cancel();
        true
    }
}

/// A worker that has begun a turn, has left, and whose tasks were settled.
async fn leave_a_turn(bench: &Bench, hangs: bool) -> Task {
    let pool = GENERATE_POOL.parse().unwrap();
    bench.broker.queue().ensure_pool(Stage::Generate, &pool).await.unwrap();
    let begun = Arc::new(Notify::new());
    let executor = Endless { begun: begun.clone(), leaving: CancellationToken::new(), hangs };
    let serves = PoolSettings { stage: Stage::Generate, pool, concurrency: 1 };
    let worker = bench.worker_with("test", serves, Duration::ZERO, Arc::new(executor));
    let turn = Task { pool: GENERATE_POOL.parse().unwrap(), ..turn_of(1, 1, 1) };
    bench.put(&turn).await;
    soon("the turn is begun", &begun).await;
    assert!(worker.leave().await, "the task is settled");
    turn
}

async fn a_begun_turn_is_handed_back(bench: Bench) {
    let turn = leave_a_turn(&bench, false).await;
    let outcomes = bench.outcomes().await;
    let [outcome] = outcomes.as_slice() else { panic!("{outcomes:?}") };
    let OutcomeBody::Returned(returned) = &outcome.body else { panic!("{outcome:?}") };
    assert_eq!(returned.sampled.as_ref().map(|part| part.tokens.as_slice()), Some(&[5, 6][..]));
    assert_eq!((outcome.key, outcome.request_fingerprint), (turn.key, Some(turn.request_fingerprint())));
    // The queue has no such task any more: the coordinator puts it with what there is of it.
    bench.forgotten(&turn).await;
}

async fn an_executor_that_hangs_hands_nothing_back(bench: Bench) {
    leave_a_turn(&bench, true).await;
    assert!(bench.outcomes().await.is_empty());
    let pool = GENERATE_POOL.parse().unwrap();
    let serves = PoolSettings { stage: Stage::Generate, pool, concurrency: 1 };
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let next = bench.worker_of("next", serves, Duration::ZERO, move |_, _| {
        told.notify_one();
        async { Verdict::Stale }.boxed()
    });
    soon("another worker has it", &begun).await;
    assert!(next.leave().await);
}
