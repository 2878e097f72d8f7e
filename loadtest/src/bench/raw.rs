//! The yardstick: messages are put, pulled and acked on the same server by the same client library, and
//! nothing is decoded, logged or decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use millrace_queue::port::{Message, Queue};
use millrace_schemas::{PoolName, RolloutId, RunId, Stage, TaskKey, subjects};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Messages put in one call.
const BATCH: u32 = 128;

/// Puts, pulls and acks for `time` with at most `in_flight` messages between put and ack. Returns
/// messages per second.
///
/// # Errors
/// The queue fails.
pub async fn run(queue: Arc<dyn Queue>, in_flight: u32, bytes: usize, time: Duration) -> anyhow::Result<f64> {
    let pool: PoolName = "raw".parse()?;
    queue.ensure_pool(Stage::Reward, &pool).await?;
    let slots = Arc::new(Semaphore::new(in_flight as usize));
    let done = Arc::new(AtomicU64::new(0));
    let puts = tokio::spawn(put_for_ever(queue.clone(), pool.clone(), slots.clone(), bytes));
    let pulls = tokio::spawn(pull_for_ever(queue, pool, slots, done.clone(), in_flight as usize));
    rate("raw", &done, [puts, pulls], time / 10, time).await
}

/// What two endless tasks do in a second, which they count in `done`, and ends them. The first moments fill the pipe.
pub(super) async fn rate(
    what: &str,
    done: &AtomicU64,
    tasks: [JoinHandle<anyhow::Result<()>>; 2],
    first: Duration,
    time: Duration,
) -> anyhow::Result<f64> {
    tokio::time::sleep(first).await;
    let (from, since) = (done.load(Ordering::Relaxed), Instant::now());
    tokio::time::sleep(time).await;
    let rate = (done.load(Ordering::Relaxed) - from) as f64 / since.elapsed().as_secs_f64();
    for task in tasks {
        anyhow::ensure!(!task.is_finished(), "the {what} benchmark stopped early: {:?}", task.await);
        task.abort();
    }
    Ok(rate)
}

/// Seconds from put to ack of one message at a time, sorted.
///
/// # Errors
/// The queue fails.
pub async fn lone(queue: Arc<dyn Queue>, bytes: usize, time: Duration) -> anyhow::Result<Vec<f64>> {
    let pool: PoolName = "lone".parse()?;
    queue.ensure_pool(Stage::Reward, &pool).await?;
    let mut puller = queue.puller(Stage::Reward, &pool).await?;
    let (run, since, mut took) = ("raw".parse()?, Instant::now(), Vec::new());
    for number in 0.. {
        let began = Instant::now();
        for put in queue.put(vec![message(&pool, &run, number, Bytes::from(vec![7; bytes]))]).await {
            put?;
        }
        for delivery in puller.pull(1).await? {
            delivery.lease.done().await?;
        }
        took.push(began.elapsed().as_secs_f64());
        if since.elapsed() > time {
            break;
        }
    }
    took.sort_unstable_by(f64::total_cmp);
    Ok(took)
}

/// A task that nobody reads.
pub(super) fn message(pool: &PoolName, run: &RunId, number: u64, payload: Bytes) -> Message {
    let rollout = RolloutId { group: number, index: 0, attempt: 0 };
    let subject = subjects::task(pool, run, Default::default(), TaskKey::Reward { rollout, reward: 0 });
    Message { subject, payload, headers: Vec::new() }
}

async fn put_for_ever(
    queue: Arc<dyn Queue>,
    pool: PoolName,
    slots: Arc<Semaphore>,
    bytes: usize,
) -> anyhow::Result<()> {
    let run: RunId = "raw".parse()?;
    let payload = Bytes::from(vec![7; bytes]);
    for first in (0_u64..).step_by(BATCH as usize) {
        slots.acquire_many(BATCH).await?.forget();
        let messages = (first..first + u64::from(BATCH)).map(|n| message(&pool, &run, n, payload.clone()));
        for put in queue.put(messages.collect()).await {
            put?;
        }
    }
    Ok(())
}

async fn pull_for_ever(
    queue: Arc<dyn Queue>,
    pool: PoolName,
    slots: Arc<Semaphore>,
    done: Arc<AtomicU64>,
    most: usize,
) -> anyhow::Result<()> {
    let mut puller = queue.puller(Stage::Reward, &pool).await?;
    loop {
        let deliveries = puller.pull(most).await?;
        let count = deliveries.len();
        for delivery in deliveries {
            delivery.lease.done().await?;
        }
        done.fetch_add(count as u64, Ordering::Relaxed);
        slots.add_permits(count);
    }
}
