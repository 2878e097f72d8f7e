//! Behaviour of the memory queue alone: a clock that does not move, and determinism.

use crate::port::EventLog;
use crate::port::KeyStore;
use crate::port::TaskQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use millrace_schemas::{PoolName, Stage};

use super::MemoryQueue;
use super::waiters::Topic;
use crate::clock::ManualClock;
use crate::port::{Expect, Message, Puller, QueueError};
use crate::settings::{Durability, QueueSettings};

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
    assert!(is_empty(&mut puller).await, "the lease is renewed");
    let waiting = tokio::spawn(async move { puller.pull(1).await.expect("delivered").remove(0).attempt });
    tokio::task::yield_now().await;
    clock.advance(LEASE);
    assert_eq!(waiting.await.expect("woken by the clock"), 2);
}

/// Who begins to wait while nothing is in flight waits by no timer, and no other change of its topic comes before the end
/// of a lease that began later.
#[tokio::test]
async fn who_waited_before_a_lease_began_sees_its_end() {
    let clock = ManualClock::new();
    let settings = QueueSettings { max_deliver: 1, ..QueueSettings::default() };
    let queue = MemoryQueue::with_settings(Arc::new(clock.clone()), settings);
    let mut exhausted = queue.exhausted().await.expect("a reader");
    let waiting = tokio::spawn(async move { exhausted.next().await.expect("a task").message.subject });
    settled().await;
    queue.put(vec![task(1)]).await;
    let mut puller = queue.puller(Stage::Generate, &pool()).await.expect("a puller");
    let held = puller.pull(1).await.expect("delivered");
    settled().await;
    // The worker dies.
    clock.advance(LEASE);
    let found = tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("woken by the clock");
    assert_eq!(found.expect("it does not panic"), task(1).subject);
    drop(held);
}

/// A worker at which a task hangs hands it back and pulls again. As at the server, one that waited all the time gets it.
#[tokio::test]
async fn who_waits_for_longest_is_served_first() {
    for one_is_paused in [false, true] {
        let clock = ManualClock::new();
        let queue = MemoryQueue::new(Arc::new(clock.clone()));
        queue.put(vec![task(1)]).await;
        let mut hangs = queue.puller(Stage::Generate, &pool()).await.expect("a puller");
        let mut waits = queue.puller(Stage::Generate, &pool()).await.expect("a puller");
        let held = hangs.pull(1).await.expect("delivered").remove(0);
        let mut waiting = std::pin::pin!(waits.pull(1));
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        held.lease.retry_after(Duration::from_secs(1)).await.expect("said");
        // The one that comes later is the first to look, again and again.
        let mut later = std::pin::pin!(hangs.pull(1));
        assert!(futures::poll!(later.as_mut()).is_pending());
        clock.advance(Duration::from_secs(1));
        assert!(futures::poll!(later.as_mut()).is_pending(), "another one waits for longer");
        if one_is_paused {
            // It does not look, so it keeps nobody waiting.
            assert_eq!(later.await.expect("delivered")[0].attempt, 2);
        } else {
            assert_eq!(waiting.await.expect("delivered")[0].attempt, 2);
        }
    }
}

/// The wakes of one that waits for `pool`, of one that waits for another, and of the one that waits for exhausted tasks.
async fn wakes(change: impl AsyncFnOnce(&MemoryQueue, &ManualClock)) -> [usize; 3] {
    let clock = ManualClock::new();
    let queue = MemoryQueue::new(Arc::new(clock.clone()));
    queue.put(vec![task(0)]).await;
    let held =
        queue.puller(Stage::Generate, &pool()).await.expect("a puller").pull(1).await.expect("delivered");
    let topics = [
        Topic::Tasks(Stage::Generate, "default".to_owned()),
        Topic::Tasks(Stage::Generate, "other".to_owned()),
        Topic::Exhausted,
    ];
    let counts = topics.map(|topic| {
        let (shared, count) = (queue.shared.clone(), Arc::new(AtomicUsize::new(0)));
        let looks = count.clone();
        // It never finds anything, and is asked at its beginning.
        let waits = async move {
            shared
                .wait_for(topic, |_| {
                    looks.fetch_add(1, Ordering::SeqCst);
                    None::<()>
                })
                .await;
        };
        (count, tokio::spawn(waits))
    });
    settled().await;
    let before = counts.each_ref().map(|(count, _)| count.load(Ordering::SeqCst));
    change(&queue, &clock).await;
    settled().await;
    let after = counts.each_ref().map(|(count, _)| count.load(Ordering::SeqCst));
    counts.into_iter().for_each(|(_, waits)| waits.abort());
    drop(held);
    std::array::from_fn(|at| after[at] - before[at])
}

/// Lets all others of this thread do what they can.
async fn settled() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// Thousands of workers wait in a simulated fleet, and each change that wakes them all costs as many looks.
#[tokio::test]
async fn a_change_wakes_those_alone_whom_it_concerns() {
    let put = wakes(async |queue, _| {
        queue.put(vec![task(1)]).await;
    });
    assert_eq!(put.await, [1, 0, 0]);
    let written = wakes(async |queue, _| {
        queue.set("bucket", "key", "value".into(), Expect::Any).await.expect("written");
        queue.append(task(9), None).await.expect("stored");
    });
    assert_eq!(written.await, [0, 0, 0]);
    // All of a stage wait for the first lease to end.
    let ended = wakes(async |_, clock| clock.advance(LEASE));
    let [own, other, exhausted] = ended.await;
    assert!(own >= 1 && other >= 1 && exhausted >= 1, "{own} {other} {exhausted}");
    let struck = wakes(async |queue, _| queue.power_loss(1));
    assert_eq!(struck.await, [1, 1, 1]);
}

/// Many tasks from put to outcome, as text.
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

/// A queue that syncs every minute, with ten entries in the log before the sync and ten after it, and as many
/// tasks and writes of a key.
async fn half_synced(durability: Durability) -> MemoryQueue {
    let clock = ManualClock::new();
    let settings = QueueSettings { durability, ..QueueSettings::default() };
    let queue = MemoryQueue::with_settings(Arc::new(clock.clone()), settings);
    for number in 0..20 {
        if number == 10 {
            clock.advance(Duration::from_secs(61));
        }
        queue.append(task(number), None).await.expect("stored");
        queue.put(vec![task(number)]).await;
        queue.set("bucket", "key", number.to_string().into(), Expect::Any).await.expect("written");
    }
    queue
}

async fn value(queue: &MemoryQueue) -> u64 {
    let value = queue.get("bucket", "key").await.expect("read").expect("a value").value;
    std::str::from_utf8(&value).expect("digits").parse().expect("a number")
}

#[tokio::test]
async fn what_was_synced_survives_a_power_loss() {
    for seed in 0..50 {
        let queue = half_synced(Durability::Synced).await;
        queue.power_loss(seed);
        assert_eq!((queue.log_end().await.expect("read"), queue.queued(), value(&queue).await), (20, 20, 19));
        assert_eq!(queue.losses(), 0);
    }
}

#[tokio::test]
async fn each_stream_loses_its_own_part_of_what_was_not_synced() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let queue = half_synced(Durability::Interval(Duration::from_secs(60))).await;
        queue.power_loss(seed);
        let left = (queue.log_end().await.expect("read"), queue.queued(), value(&queue).await);
        assert!(
            (10..=20).contains(&left.0) && (10..=20).contains(&left.1) && (9..=19).contains(&left.2),
            "{left:?}"
        );
        seen.insert(left);
        let next = queue.append(task(99), None).await.expect("stored");
        assert_eq!(next.seq, left.0 + 1, "positions are given out again");
    }
    assert!(seen.len() > 10, "{seen:?}");
}

#[tokio::test]
async fn a_reader_says_when_what_it_gave_is_lost() {
    for reused in [false, true] {
        let queue = half_synced(Durability::Interval(Duration::from_secs(60))).await;
        let mut ahead = queue.read_log(1).await.expect("a reader");
        let mut behind = queue.read_log(1).await.expect("a reader");
        assert_eq!(ahead.next(100).await.expect("entries").len(), 20);
        assert_eq!(behind.next(12).await.expect("entries").len(), 12);
        queue.lose_log_after(15);
        for number in 0..if reused { 10 } else { 0 } {
            queue.append(task(number), None).await.expect("stored");
        }
        assert!(matches!(ahead.next(1).await, Err(QueueError::Lost { seq: 20 })), "reused={reused}");
        assert_eq!(behind.next(3).await.expect("those still stand").len(), 3);
    }
}
