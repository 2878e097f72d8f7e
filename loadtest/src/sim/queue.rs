//! The queue as one process sees it: the real one in memory, behind a link on which things happen.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millrace_queue::port::{
    Appended, DeadLetterQueue, Delivery, EventLog, Exhausted, ExhaustedTasks, Expect, KeyStore, KeyValue,
    KeyWatcher, Lease, Listener, LogEntry, LogRange, LogReader, Message, Notices, PoolPriority, Puller, Put,
    TaskQueue, Written,
};
use millrace_queue::{MemoryQueue, Queue, QueueError};
use millrace_schemas::{Event, PoolName, Stage, subjects};
use tokio::time::sleep;

use super::link::Link;
use super::scenario::FaultKind;
use super::world::World;

/// Of this many tasks one's acks get lost while those of some do.
const UNACKED: u8 = 16;

/// A process's own handle.
pub(super) struct LinkedQueue {
    inner: MemoryQueue,
    link: Link,
}

impl LinkedQueue {
    pub(super) fn new(link: Link) -> Self {
        Self { inner: link.world.queue.clone(), link }
    }

    /// Refuses a further consumer as the server does that has as many as it may.
    fn may_have(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        if self.link.world.may_have_consumer(stage, pool) {
            return Ok(());
        }
        let reason = "maximum consumers limit reached (code 400, error code 10026)".to_owned();
        Err(QueueError::Refused { action: "make a consumer", reason })
    }
}

#[async_trait]
impl TaskQueue for LinkedQueue {
    async fn ensure_pool(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        self.may_have(stage, pool)?;
        self.link.call("make a consumer", || self.inner.ensure_pool(stage, pool)).await
    }

    async fn remove_pool(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        self.link.world.removes_consumer(stage, pool);
        self.link.call("remove a consumer", || self.inner.remove_pool(stage, pool)).await
    }

    async fn ack_wait(&self, stage: Stage, pool: &PoolName) -> Result<Option<Duration>, QueueError> {
        self.link.call("look at a consumer", || self.inner.ack_wait(stage, pool)).await
    }

    async fn ensure_partition(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        self.may_have(stage, pool)?;
        self.link.call("make a consumer", || self.inner.ensure_partition(stage, pool)).await
    }

    async fn put(&self, tasks: Vec<Message>) -> Vec<Result<Put, QueueError>> {
        let count = tasks.len();
        let put = async || {
            self.link.world.puts.put(&tasks);
            Ok(self.inner.put(tasks.clone()).await)
        };
        let put = self.link.call("put tasks", put).await;
        put.unwrap_or_else(|error| vec![Err(error); count])
    }

    async fn purge(&self, stage: Stage, filter: &str) -> Result<u64, QueueError> {
        self.link.call("purge", || self.inner.purge(stage, filter)).await
    }

    async fn puller(&self, stage: Stage, pool: &PoolName) -> Result<Box<dyn Puller>, QueueError> {
        let inner = self.link.call("pull", || self.inner.puller(stage, pool)).await?;
        Ok(Box::new(LinkedPuller { inner, link: self.link.clone(), waiting: VecDeque::new() }))
    }

    async fn priority_puller(
        &self,
        stage: Stage,
        partitions: Vec<PoolPriority>,
    ) -> Result<Box<dyn Puller>, QueueError> {
        let inner = self.link.call("pull", || self.inner.priority_puller(stage, partitions.clone())).await?;
        Ok(Box::new(LinkedPuller { inner, link: self.link.clone(), waiting: VecDeque::new() }))
    }

    async fn exhausted(&self) -> Result<Box<dyn ExhaustedTasks>, QueueError> {
        let inner = self.link.call("wait for advisories", || self.inner.exhausted()).await?;
        Ok(Box::new(LinkedExhausted { inner, link: self.link.clone(), waiting: None }))
    }
}

#[async_trait]
impl EventLog for LinkedQueue {
    async fn append(&self, entry: Message, id: Option<&str>) -> Result<Appended, QueueError> {
        let world = &self.link.world;
        let tick = subjects::log(subjects::ALL_RUNS, &Event::Tick { unix_ms: 0 });
        if entry.subject == tick && world.strikes(FaultKind::SlowTicks) {
            sleep(world.time(1_000, 20_000)).await;
        }
        if world.strikes(FaultKind::AppendInProcess) {
            let (inner, later, id) = (self.inner.clone(), world.time(100, 5_000), id.map(str::to_owned));
            world.loose(async move {
                sleep(later).await;
                let _ = inner.append(entry, id.as_deref()).await;
            });
            return self.link.lost("append", "409: duplicate message id is in process").await;
        }
        self.link.call("append", || self.inner.append(entry.clone(), id)).await
    }

    async fn read_log(&self, from: u64) -> Result<Box<dyn LogReader>, QueueError> {
        let inner = self.link.call("read the log", || self.inner.read_log(from)).await?;
        Ok(Box::new(LinkedLog { inner, link: self.link.clone(), waiting: VecDeque::new() }))
    }

    async fn log_entries(&self, seqs: &[u64]) -> Result<Vec<Option<LogEntry>>, QueueError> {
        self.link.call("read entries of the log", || self.inner.log_entries(seqs)).await
    }

    async fn log_end(&self) -> Result<u64, QueueError> {
        self.link.call("look at the log", || self.inner.log_end()).await
    }

    async fn log_range(&self) -> Result<LogRange, QueueError> {
        self.link.call("look at the log", || self.inner.log_range()).await
    }

    async fn trim_log(&self, before: u64) -> Result<(), QueueError> {
        self.link.call("trim the log", || self.inner.trim_log(before)).await
    }
}

#[async_trait]
impl KeyStore for LinkedQueue {
    async fn get(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        let world = &self.link.world;
        if world.strikes(FaultKind::StaleReads)
            && let Some(stale) = world.replicas.stale(&format!("{bucket}.{key}"))
        {
            return self.link.call("read a key", || std::future::ready(Ok(stale.clone()))).await;
        }
        self.link.call("read a key", || self.inner.get(bucket, key)).await
    }

    async fn get_latest(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        self.link.call("read a key", || self.inner.get_latest(bucket, key)).await
    }

    async fn set(
        &self,
        bucket: &'static str,
        key: &str,
        value: Bytes,
        expect: Expect,
    ) -> Result<Written, QueueError> {
        let write = async || {
            let before = self.inner.get(bucket, key).await?;
            let written = self.inner.set(bucket, key, value.clone(), expect).await?;
            if let Written::At(_) = written {
                self.link.world.replicas.written(&format!("{bucket}.{key}"), before);
            }
            Ok(written)
        };
        self.link.call("write a key", write).await
    }

    async fn watch(&self, bucket: &'static str) -> Result<Box<dyn KeyWatcher>, QueueError> {
        let inner = self.link.call("watch keys", || self.inner.watch(bucket)).await?;
        Ok(Box::new(LinkedWatcher { inner, link: self.link.clone(), waiting: None }))
    }
}

#[async_trait]
impl Notices for LinkedQueue {
    async fn notice(&self, subject: String, payload: Bytes) -> Result<(), QueueError> {
        self.link.call("tell", || self.inner.notice(subject.clone(), payload.clone())).await
    }

    async fn listen(&self, filter: &str) -> Result<Box<dyn Listener>, QueueError> {
        self.link.call("listen", || self.inner.listen(filter)).await
    }
}

#[async_trait]
impl DeadLetterQueue for LinkedQueue {
    async fn bury(&self, letter: Message, id: &str) -> Result<(), QueueError> {
        self.link.call("bury", || self.inner.bury(letter.clone(), id)).await
    }

    async fn dead_letters(&self, from: u64, max: usize) -> Result<Vec<LogEntry>, QueueError> {
        self.link.call("read dead letters", || self.inner.dead_letters(from, max)).await
    }

    async fn unbury(&self, seq: u64) -> Result<(), QueueError> {
        self.link.call("unbury", || self.inner.unbury(seq)).await
    }
}

#[async_trait]
impl Queue for LinkedQueue {
    async fn ensure_topology(&self) -> Result<(), QueueError> {
        self.link.call("make streams", || self.inner.ensure_topology()).await
    }
}

/// Deliveries on their way to a process that is cut off are lost, and their leases run.
struct LinkedPuller {
    inner: Box<dyn Puller>,
    link: Link,
    waiting: VecDeque<Delivery>,
}

#[async_trait]
impl Puller for LinkedPuller {
    async fn pull(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError> {
        self.link.reaches("pull").await?;
        if self.waiting.is_empty() {
            self.waiting = self.inner.pull(free).await?.into();
            if self.link.is_off() {
                self.waiting.clear();
                return self.link.lost("pull", "no connection").await;
            }
        }
        sleep(self.link.world.time(0, 3)).await;
        self.link.awake().await;
        let link = |mut delivery: Delivery| {
            let subject = delivery.message.subject.clone();
            delivery.lease =
                Arc::new(LinkedLease { inner: delivery.lease, link: self.link.clone(), subject });
            delivery
        };
        let given = free.min(self.waiting.len());
        Ok(self.waiting.drain(..given).map(link).collect())
    }

    async fn close(&mut self) {
        for delivery in self.waiting.drain(..) {
            let _ = delivery.lease.retry_after(Duration::ZERO).await;
        }
        self.inner.close().await;
    }
}

struct LinkedLease {
    inner: Arc<dyn Lease>,
    link: Link,
    subject: String,
}

impl LinkedLease {
    /// An ack, which may get lost, come twice, or come when the lease has long ended.
    async fn ack(&self) -> Result<(), QueueError> {
        let world = &self.link.world;
        if world.has(FaultKind::AckNever) && is_chosen(world, &self.subject) {
            return Ok(());
        }
        if world.strikes(FaultKind::AckLost) {
            let unseen = world.below(2) == 0;
            return if unseen { Ok(()) } else { self.link.lost("ack", "the ack got lost").await };
        }
        if world.strikes(FaultKind::AckLate) {
            let (inner, late) = (self.inner.clone(), world.time(1_000, 75_000));
            world.loose(async move {
                sleep(late).await;
                let _ = inner.done().await;
            });
            return Ok(());
        }
        if world.strikes(FaultKind::AckTwice) {
            let (inner, later) = (self.inner.clone(), world.time(1, 40_000));
            world.loose(async move {
                sleep(later).await;
                let _ = inner.done().await;
            });
        }
        self.link.call("ack", || self.inner.done()).await
    }
}

/// Whether none of this task's acks arrives while those of some do not. The same tasks everywhere.
fn is_chosen(world: &World, subject: &str) -> bool {
    world.lot(subject)[0].is_multiple_of(UNACKED)
}

#[async_trait]
impl Lease for LinkedLease {
    async fn heartbeat(&self) -> Result<(), QueueError> {
        self.link.call("keep a task", || self.inner.heartbeat()).await
    }

    async fn done(&self) -> Result<(), QueueError> {
        self.ack().await
    }

    async fn retry_after(&self, delay: Duration) -> Result<(), QueueError> {
        self.link.call("give a task back", || self.inner.retry_after(delay)).await
    }

    async fn poison(&self, reason: &str) -> Result<(), QueueError> {
        self.link.call("give a task up", || self.inner.poison(reason)).await
    }
}

struct LinkedLog {
    inner: Box<dyn LogReader>,
    link: Link,
    waiting: VecDeque<LogEntry>,
}

#[async_trait]
impl LogReader for LinkedLog {
    async fn next(&mut self, max: usize) -> Result<Vec<LogEntry>, QueueError> {
        self.link.reaches("read the log").await?;
        if self.waiting.is_empty() {
            self.waiting = self.inner.next(max).await?.into();
        }
        sleep(self.link.world.time(0, 3)).await;
        self.link.awake().await;
        let given = max.min(self.waiting.len());
        Ok(self.waiting.drain(..given).collect())
    }
}

struct LinkedWatcher {
    inner: Box<dyn KeyWatcher>,
    link: Link,
    waiting: Option<KeyValue>,
}

#[async_trait]
impl KeyWatcher for LinkedWatcher {
    async fn next(&mut self) -> Result<KeyValue, QueueError> {
        self.link.reaches("watch keys").await?;
        if self.waiting.is_none() {
            self.waiting = Some(self.inner.next().await?);
        }
        sleep(self.link.world.time(0, 3)).await;
        self.link.awake().await;
        Ok(self.waiting.take().expect("a value was waited for"))
    }
}

struct LinkedExhausted {
    inner: Box<dyn ExhaustedTasks>,
    link: Link,
    waiting: Option<Exhausted>,
}

#[async_trait]
impl ExhaustedTasks for LinkedExhausted {
    async fn next(&mut self) -> Result<Exhausted, QueueError> {
        self.link.reaches("wait for advisories").await?;
        if self.waiting.is_none() {
            self.waiting = Some(self.inner.next().await?);
        }
        self.link.awake().await;
        Ok(self.waiting.take().expect("a task was waited for"))
    }
}
