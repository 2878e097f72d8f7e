//! Panics, garbage, long work and a queue that goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt;
use millrace_queue::port::Message;
use millrace_schemas::envelope::encode;
use millrace_schemas::{Event, subjects};
use tokio::sync::Notify;

use crate::support::{Bench, done, eventually, group, on_both_queues, pool, run, soon, task};

const GRACE: Duration = Duration::from_secs(5);

on_both_queues!(
    a_panic_is_tried_again_then_buried,
    garbage_is_buried_and_the_loop_goes_on,
    heartbeats_keep_a_long_task,
);

async fn a_panic_is_tried_again_then_buried(bench: Bench) {
    let tried = Arc::new(AtomicU64::new(0));
    let counter = tried.clone();
    let worker = bench.worker(2, GRACE, move |task, _| {
        let wicked = group(&task) == 1;
        if wicked {
            counter.fetch_add(1, SeqCst);
        }
        async move {
            assert!(!wicked, "index out of bounds");
            done()
        }
        .boxed()
    });
    bench.put(&task(1, 0)).await;
    for group in 2..20 {
        bench.put(&task(group, 0)).await;
    }
    eventually("the other outcomes", async || (bench.outcomes().await.len() == 18).then_some(())).await;
    let letter = eventually("a dead letter", async || bench.broker.dead_letters().await.unwrap().pop()).await;
    assert!(letter.reason.contains("panicked: index out of bounds"), "{}", letter.reason);
    assert_eq!(tried.load(SeqCst), 3, "the first panics may be the machine's fault");
    assert!(worker.leave().await);
    bench.forgotten(&task(1, 0)).await;
}

async fn garbage_is_buried_and_the_loop_goes_on(bench: Bench) {
    let worker = bench.worker(1, GRACE, |_, _| async { done() }.boxed());
    let good = task(1, 0);
    let subject_of = |group| subjects::task(&pool(), &run(), task(group, 0).version, task(group, 0).key);
    let message =
        |subject: String, payload: Vec<u8>| Message { subject, payload: payload.into(), headers: Vec::new() };
    let garbage = vec![
        message(subject_of(2), b"\x00\xff garbage".to_vec()),
        message(subject_of(3), encode(&good).to_vec()),
        message(subject_of(4), encode(&task(4, 0))[..20].to_vec()),
        message("mr.task.env_step.counter.No_Run.v0.x".to_owned(), encode(&good).to_vec()),
    ];
    for put in bench.broker.queue().put(garbage).await {
        put.unwrap();
    }
    bench.put(&good).await;
    let letters = eventually("four dead letters", async || {
        let letters = bench.broker.dead_letters().await.unwrap();
        (letters.len() == 4).then_some(letters)
    })
    .await;
    assert!(letters.iter().any(|letter| letter.payload[..] == b"\x00\xff garbage"[..]), "with its bytes");
    eventually("the good outcome", async || (bench.outcomes().await.len() == 1).then_some(())).await;
    assert!(worker.leave().await);
    // The one that names no task has none to tell the log of.
    let buried = bench.events().await.into_iter().filter(|e| matches!(e, Event::DeadLetter { .. })).count();
    assert_eq!(buried, 3);
}

async fn heartbeats_keep_a_long_task(bench: Bench) {
    let tried = Arc::new(AtomicU64::new(0));
    let counter = tried.clone();
    // Three times as long as a lease.
    let worker = bench.worker(4, GRACE, move |_, _| {
        counter.fetch_add(1, SeqCst);
        async {
            tokio::time::sleep(Duration::from_secs(3)).await;
            done()
        }
        .boxed()
    });
    bench.put(&task(1, 0)).await;
    eventually("an outcome", async || (!bench.outcomes().await.is_empty()).then_some(())).await;
    assert_eq!(tried.load(SeqCst), 1, "nobody else was given the task");
    assert!(worker.leave().await);
}

/// The work is done while the server is dead: the outcome waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_outlives_the_server() {
    let mut bench = Bench::on_nats().await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (told, wait) = (begun.clone(), go_on.clone());
    let worker = bench.worker(1, GRACE, move |_, _| {
        let (told, wait) = (told.clone(), wait.clone());
        async move {
            told.notify_one();
            wait.notified().await;
            done()
        }
        .boxed()
    });
    bench.put(&task(1, 0)).await;
    soon("the task is begun", &begun).await;
    let mut server = bench.server.take().unwrap();
    server.kill().await;
    go_on.notify_one();
    server.restart().await.unwrap();
    bench.server = Some(server);
    go_on.notify_one();
    eventually("an outcome", async || match bench.broker.queue().log_end().await {
        Ok(1..) => Some(()),
        Ok(0) | Err(_) => None,
    })
    .await;
    assert!(worker.leave().await);
}
