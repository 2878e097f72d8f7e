//! Leases: they end, are kept, are given back.

use std::time::Duration;

use millrace_schemas::Stage;
use tokio::time::Instant;

use super::{Fixture, MAX_DELIVER, SHORT_LEASE, is_quiet, pool, pull_one, task};

/// Another gets it once its lease is over.
pub async fn a_silent_worker_loses_its_task(fixture: Fixture) {
    fixture.put(&[task(1, 0, 4)]).await;
    let (mut silent, mut other) = (fixture.puller().await, fixture.puller().await);
    let first = pull_one(&mut silent).await;
    let since = Instant::now();
    let second = pull_one(&mut other).await;
    assert!(since.elapsed() >= SHORT_LEASE * 8 / 10, "not before its lease is over: {:?}", since.elapsed());
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert_eq!(first.seq, second.seq);
    let known = fixture.queue.ack_wait(Stage::Generate, &pool()).await.expect("it answers");
    assert_eq!(known, Some(SHORT_LEASE), "a worker can read the length of its lease");
}

/// A worker that sends heartbeats keeps its task for many leases.
pub async fn heartbeats_keep_a_task(fixture: Fixture) {
    fixture.put(&[task(1, 0, 4)]).await;
    let mut puller = fixture.puller().await;
    let delivery = pull_one(&mut puller).await;
    let until = Instant::now() + SHORT_LEASE * 3;
    while Instant::now() < until {
        delivery.lease.heartbeat().await.expect("said");
        let redelivered = tokio::time::timeout(SHORT_LEASE / 6, puller.pull(1)).await;
        assert!(redelivered.is_err(), "it was given to another");
    }
    assert_eq!(pull_one(&mut puller).await.attempt, 2, "without them it is");
}

/// Whether the queue honours it or not, the task is settled in the end and nothing fails.
pub async fn a_late_acknowledgement_is_harmless(fixture: Fixture) {
    let one = task(1, 0, 4);
    fixture.put(std::slice::from_ref(&one)).await;
    let mut puller = fixture.puller().await;
    let late = pull_one(&mut puller).await;
    let current = pull_one(&mut puller).await;
    assert_eq!(current.attempt, 2);
    late.lease.done().await.expect("said");
    current.lease.heartbeat().await.expect("said");
    current.lease.done().await.expect("said");
    fixture.put_until_queued(&one).await;
    let again = pull_one(&mut puller).await;
    late.lease.retry_after(Duration::ZERO).await.expect("said");
    assert_eq!(again.attempt, 1, "the new task of that name is untouched");
    again.lease.done().await.expect("said");
    assert!(is_quiet(&mut puller).await);
}

/// At once, or after the delay; each counts as a delivery.
pub async fn a_task_given_back_waits(fixture: Fixture) {
    fixture.put(&[task(1, 0, 4)]).await;
    let mut puller = fixture.puller().await;
    let first = pull_one(&mut puller).await;
    first.lease.retry_after(Duration::ZERO).await.expect("said");
    let second = pull_one(&mut puller).await;
    assert_eq!(second.attempt, 2);
    let (delay, since) = (Duration::from_millis(400), Instant::now());
    second.lease.retry_after(delay).await.expect("said");
    let third = pull_one(&mut puller).await;
    assert!(since.elapsed() >= delay * 8 / 10, "not before the delay is over: {:?}", since.elapsed());
    assert_eq!(third.attempt, MAX_DELIVER.unsigned_abs());
    third.lease.done().await.expect("said");
}
