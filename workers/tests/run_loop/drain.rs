//! The drain: tasks are finished, or returned to the queue.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::support::{Bench, done, eventually, on_both_queues, soon, task};

on_both_queues!(what_is_in_hand_is_finished, what_takes_too_long_is_handed_back, nothing_new_is_begun);

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

    let handed_back = Instant::now();
    let other = bench.worker(4, Duration::from_secs(5), |_, _| async { done() }.boxed());
    eventually("an outcome", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    let waited = handed_back.elapsed();
    assert!(waited < Duration::from_millis(900), "{waited:?}: it came when the lease ended, not at once");
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
