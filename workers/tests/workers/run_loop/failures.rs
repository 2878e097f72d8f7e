//! Panics, garbage, long work and a queue that goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use futures::FutureExt;
use millrace_queue::QueueSettings;
use millrace_queue::port::Message;
use millrace_schemas::envelope::encode;
use millrace_schemas::limits::attempt_ms;
use millrace_schemas::{Event, Stage, subjects};
use millrace_workers::Verdict;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::run_loop::support::{
    Bench, SHORT_LEASES, done, eventually, group, on_both_queues, pool, run, soon, task,
};

const GRACE: Duration = Duration::from_secs(5);

on_both_queues!(
    a_panic_is_tried_again_then_buried,
    garbage_is_buried_and_the_loop_goes_on,
    heartbeats_keep_a_long_task,
    producer_failure_is_visible,
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
    // A payload without a task has no entry in the log.
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
    assert_eq!(tried.load(SeqCst), 1, "no other worker got the task");
    assert!(worker.leave().await);
}

/// An environment fails every time: its task is retried, then buried with a reason in the log, and
/// no other task waits for it.
async fn producer_failure_is_visible(bench: Bench) {
    let (tried, broker) = (Arc::new(AtomicU64::new(0)), bench.broker.clone());
    // As the coordinator does.
    let burying = tokio::spawn(async move {
        let mut exhausted = broker.exhausted().await.unwrap();
        loop {
            let task = exhausted.next().await.unwrap();
            broker.bury_exhausted(&task).await.unwrap();
        }
    });
    let counter = tried.clone();
    let worker = bench.worker(1, GRACE, move |task, _| {
        let broken = group(&task) == 1;
        counter.fetch_add(u64::from(broken), SeqCst);
        let verdict = if broken {
            Verdict::RetryAfter(Duration::from_millis(10), "reset failed: no display".to_owned())
        } else {
            done()
        };
        async { verdict }.boxed()
    });
    for group in 1..20 {
        bench.put(&task(group, 0)).await;
    }
    eventually("the other outcomes", async || (bench.outcomes().await.len() == 18).then_some(())).await;
    let letter = eventually("a dead letter", async || bench.broker.dead_letters().await.unwrap().pop()).await;
    assert_eq!(letter.reason, "reset failed: no display (tried 5 times)");
    assert_eq!(letter.task, Some((run(), task(1, 0).key)));
    assert_eq!(tried.load(SeqCst), QueueSettings::default().max_deliver as u64);
    let buried = eventually("the log has the dead letter", async || {
        bench.events().await.into_iter().find_map(|event| match event {
            Event::DeadLetter { key, reason, exhausted } => Some((key, reason, exhausted)),
            _ => None,
        })
    });
    assert_eq!(buried.await, (task(1, 0).key, letter.reason, true));
    bench.forgotten(&task(1, 0)).await;
    bench.put(&task(30, 0)).await;
    eventually("later work", async || (bench.outcomes().await.len() == 19).then_some(())).await;
    assert!(worker.leave().await);
    burying.abort();
}

/// An environment hangs while its worker sends heartbeats: after its time the attempt is cancelled,
/// and the turn is retried.
#[tokio::test(start_paused = true)]
async fn hung_env_is_replaced() {
    let bench = Bench::in_memory(SHORT_LEASES).await;
    let begun = Arc::new(Notify::new());
    let told = begun.clone();
    let hanging = bench.worker(1, GRACE, move |task, _| {
        if group(&task) == 1 {
            told.notify_one();
            return std::future::pending().boxed();
        }
        async { done() }.boxed()
    });
    bench.put(&task(1, 0)).await;
    soon("the task is begun", &begun).await;
    let since = Instant::now();
    let tried = Arc::new(AtomicU64::new(0));
    let counter = tried.clone();
    let other = bench.worker(1, GRACE, move |_, _| {
        counter.fetch_add(1, SeqCst);
        async { done() }.boxed()
    });
    let limit = Duration::from_millis(attempt_ms(Stage::EnvStep));
    let outcome = async {
        while bench.outcomes().await.is_empty() {
            // The worker that hung may get it again, and again for its whole time.
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(3 * limit, outcome).await.expect("the turn is done again");
    assert!(since.elapsed() >= limit, "{:?}: a slow environment is not a hung one", since.elapsed());
    assert_eq!((bench.outcomes().await.len(), tried.load(SeqCst)), (1, 1));
    assert!(other.leave().await);
    // A task that hung does not keep its worker's slot.
    bench.put(&task(2, 0)).await;
    eventually("another outcome", async || (bench.outcomes().await.len() == 2).then_some(())).await;
    assert!(hanging.leave().await);
}

/// The work is done while the server is dead: the outcome waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outcome_outlives_the_server() {
    let mut bench = Bench::on_nats(SHORT_LEASES).await;
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
