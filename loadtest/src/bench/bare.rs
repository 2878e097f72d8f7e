//! What no queue on JetStream can save: the messages of whole lives, over the same client library and port, by a
//! coordinator and a worker that read none of them. It is the yardstick of our own code, as `raw.rs` is that of a life.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::future::try_join_all;
use millrace_queue::port::{Delivery, Message, Queue};
use millrace_schemas::{PoolName, RunId, Stage, subjects};

use super::raw::{message, rate};

/// Bytes of a task and of an outcome: the means of those that `lives.rs` sends.
const BYTES: [usize; 2] = [400, 160];
/// Entries of the log read at once, as many as a coordinator reads.
const READ: usize = 4_096;

/// The two connections of a life.
pub struct Queues {
    /// Puts tasks and reads the log.
    pub coordinator: Arc<dyn Queue>,
    /// Pulls tasks, appends to the log, and acks.
    pub worker: Arc<dyn Queue>,
}

/// Plays for `time` with `in_flight` tasks: each entry of the log is answered by the next task. Returns lives per
/// second.
///
/// # Errors
/// The queue fails.
pub async fn run(queues: Queues, name: &str, in_flight: u32, time: Duration) -> anyhow::Result<f64> {
    let (pool, run): (PoolName, RunId) = ("bare".parse()?, name.parse()?);
    queues.worker.ensure_topology().await?;
    queues.worker.ensure_pool(Stage::Reward, &pool).await?;
    let done = Arc::new(AtomicU64::new(0));
    let from = queues.coordinator.log_end().await? + 1;
    let coordinator =
        coordinate(queues.coordinator, pool.clone(), run.clone(), from, in_flight, done.clone());
    let coordinator = tokio::spawn(coordinator);
    let worker = tokio::spawn(work(queues.worker.clone(), pool, run.clone(), in_flight as usize));
    let rate = rate("bare", &done, [coordinator, worker], time / 5, time).await?;
    queues.worker.purge(Stage::Reward, &subjects::tasks_of_run(Stage::Reward, &run)).await?;
    Ok(rate)
}

async fn coordinate(
    queue: Arc<dyn Queue>,
    pool: PoolName,
    run: RunId,
    from: u64,
    in_flight: u32,
    done: Arc<AtomicU64>,
) -> anyhow::Result<()> {
    let payload = Bytes::from(vec![7; BYTES[0]]);
    let mut log = queue.read_log(from).await?;
    let (mut number, mut wanted) = (0, u64::from(in_flight));
    loop {
        let messages = (number..number + wanted).map(|n| message(&pool, &run, n, payload.clone()));
        for put in queue.put(messages.collect()).await {
            put?;
        }
        number += wanted;
        wanted = log.next(READ).await?.len() as u64;
        done.fetch_add(wanted, Ordering::Relaxed);
    }
}

async fn work(queue: Arc<dyn Queue>, pool: PoolName, run: RunId, in_flight: usize) -> anyhow::Result<()> {
    let payload = Bytes::from(vec![7; BYTES[1]]);
    let subject = subjects::outcomes_of_stage(Stage::Reward).replace('*', run.as_str());
    let mut puller = queue.puller(Stage::Reward, &pool).await?;
    loop {
        let settled = puller.pull(in_flight).await?.into_iter().map(async |delivery: Delivery| {
            let subject = subject.clone();
            let id = format!("{run}/put/{:x}/{}", delivery.stored_ns, delivery.seq);
            let entry = Message { subject, payload: payload.clone(), headers: Vec::new() };
            queue.append(entry, Some(&id)).await?;
            delivery.lease.done().await
        });
        try_join_all(settled).await?;
    }
}
