//! Stale tasks are dropped: before their execution, or during it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt;
use millrace_schemas::blob::Sha;
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::policy::Policy;
use millrace_schemas::{PolicyVersion, Stage, subjects};
use tokio::sync::Notify;

use crate::run_loop::support::{Bench, done, eventually, group, on_both_queues, run, soon, task};

const GRACE: Duration = Duration::from_secs(5);

on_both_queues!(
    stale_work_is_dropped_unexecuted,
    evaluation_is_never_stale,
    a_late_policy_cancels_what_is_in_hand,
    an_ended_run_leaves_the_worker_idle,
    end_of_run_releases_workers,
);

fn policy(version: u64, floor: u64, ended: bool) -> Policy {
    let (version, floor) = (PolicyVersion(version), PolicyVersion(floor));
    Policy { version, manifest: Sha::of(b"manifest"), floor, attempt: 0, partitions: 1, ended }
}

async fn stale_work_is_dropped_unexecuted(bench: Bench) {
    bench.broker.set_policy(&run(), &policy(5, 4, false)).await.unwrap();
    for group in 0..10 {
        bench.put(&task(group, group)).await;
    }
    let executed = Arc::new(AtomicU64::new(0));
    let counter = executed.clone();
    let worker = bench.worker(1, GRACE, move |_, _| {
        counter.fetch_add(1, SeqCst);
        async { done() }.boxed()
    });
    eventually("the fresh outcomes", async || (bench.outcomes().await.len() >= 6).then_some(())).await;
    for group in 0..4 {
        bench.forgotten(&task(group, group)).await;
    }
    assert!(worker.leave().await);
    assert_eq!(executed.load(SeqCst), 6, "versions 4 to 9");
    assert_eq!(bench.events().await.len(), 6);
}

async fn evaluation_is_never_stale(bench: Bench) {
    bench.broker.set_policy(&run(), &policy(5, 4, false)).await.unwrap();
    let mut evaluate = task(1, 0);
    evaluate.evaluate = true;
    bench.put(&evaluate).await;
    let worker = bench.worker(1, GRACE, |_, _| async { done() }.boxed());
    eventually("its outcome", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    assert!(worker.leave().await);
}

async fn a_late_policy_cancels_what_is_in_hand(bench: Bench) {
    bench.broker.set_policy(&run(), &policy(1, 0, false)).await.unwrap();
    let (begun, cancelled) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, heard) = (begun.clone(), cancelled.clone());
    let worker = bench.worker(2, GRACE, move |task, cancel| {
        if group(&task) == 2 {
            return async { done() }.boxed();
        }
        let heard = heard.clone();
        tokio::spawn(async move {
            cancel.cancelled().await;
            heard.notify_one();
        });
        told.notify_one();
        std::future::pending().boxed()
    });
    bench.put(&task(1, 1)).await;
    soon("the task is begun", &begun).await;
    bench.broker.set_policy(&run(), &policy(2, 2, false)).await.unwrap();
    soon("the task is cancelled", &cancelled).await;
    bench.forgotten(&task(1, 1)).await;
    bench.put(&task(2, 2)).await;
    eventually("the fresh outcome", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    assert!(worker.leave().await);
    assert_eq!(bench.events().await.len(), 1);
}

async fn an_ended_run_leaves_the_worker_idle(bench: Bench) {
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let worker = bench.worker(1, GRACE, move |_, _| {
        told.notify_one();
        std::future::pending().boxed()
    });
    bench.put(&task(1, 0)).await;
    soon("the task is begun", &begun).await;
    bench.broker.set_policy(&run(), &policy(3, 2, true)).await.unwrap();
    bench.forgotten(&task(1, 0)).await;
    bench.forgotten(&task(2, 9)).await;
    assert!(worker.leave().await);
    assert!(bench.events().await.is_empty());
}

/// The run ends while tasks are queued and in flight: no execution starts any more, those in flight
/// are cancelled, and the worker reports that it is idle, so that an autoscaler sees it.
async fn end_of_run_releases_workers(bench: Bench) {
    let mut notices = bench.broker.queue().listen(&subjects::worker_notice("test")).await.unwrap();
    let (begun, cancelled) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (began, heard) = (begun.clone(), cancelled.clone());
    let worker = bench.worker(2, GRACE, move |_, cancel| {
        began.fetch_add(1, SeqCst);
        let heard = heard.clone();
        tokio::spawn(async move {
            cancel.cancelled().await;
            heard.fetch_add(1, SeqCst);
        });
        std::future::pending().boxed()
    });
    for group in 0..10 {
        bench.put(&task(group, 0)).await;
    }
    eventually("two are in flight", async || (begun.load(SeqCst) == 2).then_some(())).await;
    bench.broker.set_policy(&run(), &policy(3, 0, true)).await.unwrap();
    // Put by a process that did not see the end.
    bench.put(&task(10, 3)).await;
    let idle = async {
        loop {
            let notice = notices.next().await.unwrap();
            let told: WorkerNotice = serde_json::from_slice(&notice.payload).unwrap();
            let counters = &told.stages[&Stage::EnvStep];
            if counters.in_hand == 0 && counters.stale == 11 {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), idle).await.expect("the worker reports that it is idle");
    eventually("both are cancelled", async || (cancelled.load(SeqCst) == 2).then_some(())).await;
    assert_eq!(begun.load(SeqCst), 2, "nothing is begun for a run that ended");
    for group in 0..10 {
        bench.forgotten(&task(group, 0)).await;
    }
    assert!(worker.leave().await);
    assert!(bench.events().await.is_empty());
}
