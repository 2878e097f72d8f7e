//! What only the queue in memory can show: its time stands still, and it does the same twice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_schemas::{PoolName, Stage};

use super::MemoryQueue;
use crate::clock::ManualClock;
use crate::port::{Message, Puller, Queue};

const LEASE: Duration = Duration::from_secs(30);

fn task(number: u32) -> Message {
    let subject = format!("mr.task.generate.default.demo.v0.g{number}r0a0-s1");
    Message { subject, payload: Bytes::new(), headers: vec![] }
}

fn pool() -> PoolName {
    "default".parse().expect("a pool name")
}

/// Whether a pull gives nothing now.
async fn is_empty(puller: &mut Box<dyn Puller>) -> bool {
    futures::poll!(std::pin::pin!(puller.pull(1))).is_pending()
}

#[tokio::test]
async fn a_lease_ends_at_its_moment() {
    let clock = ManualClock::new();
    let queue = MemoryQueue::new(Arc::new(clock.clone()));
    queue.put(vec![task(1)]).await;
    let mut puller = queue.puller(Stage::Generate, &pool()).await.expect("a puller");
    let first = puller.pull(1).await.expect("delivered").remove(0);
    clock.advance(LEASE - Duration::from_millis(1));
    assert!(is_empty(&mut puller).await);
    first.lease.heartbeat().await.expect("said");
    clock.advance(Duration::from_millis(1));
    assert!(is_empty(&mut puller).await, "the lease runs anew");
    let waiting = tokio::spawn(async move { puller.pull(1).await.expect("delivered").remove(0).attempt });
    tokio::task::yield_now().await;
    clock.advance(LEASE);
    assert_eq!(waiting.await.expect("woken by the clock"), 2);
}

/// A small life of many tasks, told as text.
async fn story() -> Vec<String> {
    let clock = ManualClock::new();
    let queue = MemoryQueue::new(Arc::new(clock.clone()));
    let mut puller = queue.puller(Stage::Generate, &pool()).await.expect("a puller");
    let mut told = Vec::new();
    for round in 0..40 {
        queue.put((0..7).map(|i| task(round * 5 + i)).collect()).await;
        for delivery in puller.pull(4).await.expect("delivered") {
            told.push(format!("{} {} {}", delivery.message.subject, delivery.attempt, delivery.seq));
            match delivery.seq % 3 {
                0 => delivery.lease.done().await.expect("said"),
                1 => delivery.lease.retry_after(Duration::from_secs(delivery.seq % 5)).await.expect("said"),
                _ => {}
            }
        }
        clock.advance(Duration::from_secs(7));
    }
    told
}

#[tokio::test]
async fn the_same_calls_do_the_same() {
    let told = story().await;
    assert!(told.iter().any(|line| line.contains(" 2 ")), "some were redelivered");
    assert_eq!(told, story().await);
}
