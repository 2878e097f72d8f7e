//! Each verdict has exactly one effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use millrace_schemas::{Event, OutcomeBody, Stage, Task};
use millrace_workers::{Executor, PoolSettings, Verdict};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::run_loop::support::{Bench, done, eventually, group, on_both_queues, pool, task};

const GRACE: Duration = Duration::from_secs(5);

on_both_queues!(
    done_is_logged_once_and_forgotten,
    retry_comes_again_after_its_delay,
    poison_is_buried_with_its_reason,
    stale_is_forgotten_without_a_word,
    workers_that_leave_do_not_use_up_a_task,
    no_more_is_pulled_than_can_be_done,
    what_is_passed_on_is_done_by_another_or_comes_back,
);

async fn done_is_logged_once_and_forgotten(bench: Bench) {
    let worker = bench.worker(8, GRACE, |_, _| async { done() }.boxed());
    for group in 0..100 {
        bench.put(&task(group, 0)).await;
    }
    eventually("all outcomes", async || (bench.outcomes().await.len() == 100).then_some(())).await;
    let outcomes = bench.outcomes().await;
    for group in 0..100 {
        let of_task = outcomes.iter().filter(|outcome| outcome.key == task(group, 0).key);
        assert_eq!(of_task.count(), 1, "group {group}");
    }
    assert!(outcomes.iter().all(|outcome| outcome.worker.as_str() == "test"));
    assert!(worker.leave().await);
    bench.forgotten(&task(3, 0)).await;
    assert_eq!(bench.events().await.len(), 100, "nothing else is in the log");
}

async fn retry_comes_again_after_its_delay(bench: Bench) {
    let tried = Arc::new(AtomicU64::new(0));
    let counter = tried.clone();
    let worker = bench.worker(1, GRACE, move |_, _| {
        let first = counter.fetch_add(1, SeqCst) == 0;
        async move {
            if first { Verdict::RetryAfter(Duration::from_millis(300), "not yet".to_owned()) } else { done() }
        }
        .boxed()
    });
    let put = Instant::now();
    bench.put(&task(1, 0)).await;
    eventually("an outcome", async || (!bench.outcomes().await.is_empty()).then_some(())).await;
    assert!(put.elapsed() >= Duration::from_millis(300), "it came again after {:?}", put.elapsed());
    assert_eq!(tried.load(SeqCst), 2);
    assert!(worker.leave().await);
    assert_eq!(bench.events().await.len(), 1);
}

async fn poison_is_buried_with_its_reason(bench: Bench) {
    let worker = bench.worker(2, GRACE, |task, _| {
        let poison = group(&task) == 1;
        async move { if poison { Verdict::Poison("reward=NaN".to_owned()) } else { done() } }.boxed()
    });
    bench.put(&task(1, 0)).await;
    bench.put(&task(2, 0)).await;
    let letters = eventually("a dead letter", async || {
        let letters = bench.broker.dead_letters().await.unwrap();
        (!letters.is_empty()).then_some(letters)
    })
    .await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].task.as_ref().unwrap().1, task(1, 0).key);
    assert!(letters[0].reason.contains("reward=NaN"), "{}", letters[0].reason);
    eventually("both events", async || (bench.events().await.len() == 2).then_some(())).await;
    assert!(worker.leave().await);
    let buried = |event: &Event| matches!(event, Event::DeadLetter { key, .. } if *key == task(1, 0).key);
    assert_eq!(bench.events().await.iter().filter(|event| buried(event)).count(), 1);
    assert_eq!(bench.outcomes().await[0].key, task(2, 0).key);
    bench.forgotten(&task(1, 0)).await;
}

async fn workers_that_leave_do_not_use_up_a_task(bench: Bench) {
    bench.put(&task(1, 0)).await;
    for left in 1..=4_u64 {
        let begun = Arc::new(AtomicU64::new(0));
        let counter = begun.clone();
        let worker = bench.worker(1, Duration::ZERO, move |_, _| {
            counter.fetch_add(1, SeqCst);
            std::future::pending().boxed()
        });
        eventually("the task to begin", async || (begun.load(SeqCst) == 1).then_some(())).await;
        assert!(worker.leave().await);
        assert_eq!(bench.events().await.len() as u64, left / 4, "only the last but one asks to be requeued");
    }
    let body = bench.outcomes().await.remove(0).body;
    assert!(matches!(body, OutcomeBody::Returned(_)), "{body:?}");
    // The coordinator requeues it, with all its deliveries.
    bench.put(&task(1, 0)).await;
    let worker = bench.worker(1, GRACE, |_, _| async { done() }.boxed());
    eventually("an outcome", async || (bench.outcomes().await.len() == 2).then_some(())).await;
    assert!(worker.leave().await);
    assert!(bench.broker.dead_letters().await.unwrap().is_empty());
}

async fn stale_is_forgotten_without_a_word(bench: Bench) {
    let worker = bench.worker(1, GRACE, |_, _| async { Verdict::Stale }.boxed());
    bench.put(&task(1, 0)).await;
    bench.forgotten(&task(1, 0)).await;
    assert!(worker.leave().await);
    assert!(bench.events().await.is_empty());
    assert!(bench.broker.dead_letters().await.unwrap().is_empty());
}

async fn no_more_is_pulled_than_can_be_done(bench: Bench) {
    let begun = Arc::new(AtomicU64::new(0));
    let counter = begun.clone();
    let busy = bench.worker(2, Duration::ZERO, move |_, _| {
        counter.fetch_add(1, SeqCst);
        std::future::pending().boxed()
    });
    for group in 0..10 {
        bench.put(&task(group, 0)).await;
    }
    eventually("two tasks in hand", async || (begun.load(SeqCst) == 2).then_some(())).await;
    // The other eight are free for any worker, at once and not after a lease.
    let free = bench.worker(4, GRACE, |_, _| async { done() }.boxed());
    eventually("eight outcomes", async || (bench.outcomes().await.len() >= 8).then_some(())).await;
    assert!(free.leave().await);
    assert_eq!(bench.outcomes().await.len(), 8);
    assert!(busy.leave().await);
}

/// Executes whatever it gets, and would rather not.
struct Reluctant(bool);

#[async_trait]
impl Executor for Reluctant {
    async fn execute(&self, _task: Task, _cancel: CancellationToken) -> Verdict {
        done()
    }

    fn passes_on(&self, _task: &Task) -> bool {
        self.0
    }
}

async fn what_is_passed_on_is_done_by_another_or_comes_back(bench: Bench) {
    const TASKS: u64 = 20;
    let worker = |name: &str, passes| {
        let serves = PoolSettings { stage: Stage::EnvStep, pool: pool(), concurrency: 1 };
        bench.worker_with(name, serves, GRACE, Arc::new(Reluctant(passes)))
    };
    let play = async |from| {
        // One after another, as steps come.
        for number in from..from + TASKS {
            bench.put(&task(number, 0)).await;
            eventually("it is done", async || (bench.outcomes().await.len() as u64 > number).then_some(()))
                .await;
        }
        let outcomes = bench.outcomes().await.split_off(from as usize);
        outcomes.iter().filter(|outcome| outcome.worker.as_str() == "willing").count() as u64
    };
    let reluctant = worker("reluctant", true);
    assert_eq!(play(0).await, 0, "there is nobody else");
    let willing = worker("willing", false);
    let done = play(TASKS).await;
    assert!(done > TASKS * 3 / 4, "the willing worker did {done} of {TASKS}");
    assert!(reluctant.leave().await && willing.leave().await);
}
