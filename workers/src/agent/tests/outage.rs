//! A queue whose server can hang: messages go nowhere, and questions get no answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use async_trait::async_trait;
use bytes::Bytes;
use millrace_queue::clock::SystemClock;
use millrace_queue::port::{
    Appended, DeadLetterQueue, EventLog, ExhaustedTasks, Expect, KeyStore, KeyValue, KeyWatcher, Listener,
    LogEntry, LogRange, LogReader, Message, Notices, PoolPriority, Puller, Put, TaskQueue, Written,
};
use millrace_queue::{MemoryQueue, Queue, QueueError};
use millrace_schemas::{PoolName, Stage};

pub(super) struct Outage {
    inner: MemoryQueue,
    hangs: AtomicBool,
}

impl Outage {
    pub(super) fn new() -> Self {
        Self { inner: MemoryQueue::new(Arc::new(SystemClock::new())), hangs: AtomicBool::new(false) }
    }

    pub(super) fn hang(&self, hangs: bool) {
        self.hangs.store(hangs, SeqCst);
    }
}

#[async_trait]
impl KeyStore for Outage {
    async fn get(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        if self.hangs.load(SeqCst) {
            std::future::pending::<()>().await;
        }
        self.inner.get(bucket, key).await
    }

    async fn set(
        &self,
        bucket: &'static str,
        key: &str,
        value: Bytes,
        expect: Expect,
    ) -> Result<Written, QueueError> {
        self.inner.set(bucket, key, value, expect).await
    }

    async fn watch(&self, bucket: &'static str) -> Result<Box<dyn KeyWatcher>, QueueError> {
        self.inner.watch(bucket).await
    }
}

#[async_trait]
impl Notices for Outage {
    async fn notice(&self, subject: String, payload: Bytes) -> Result<(), QueueError> {
        if self.hangs.load(SeqCst) {
            return Ok(());
        }
        self.inner.notice(subject, payload).await
    }

    async fn listen(&self, filter: &str) -> Result<Box<dyn Listener>, QueueError> {
        self.inner.listen(filter).await
    }
}

/// Between workers that host agents travel notices alone.
#[async_trait]
impl TaskQueue for Outage {
    async fn ensure_pool(&self, _: Stage, _: &PoolName) -> Result<(), QueueError> {
        unreachable!()
    }

    async fn ensure_partition(&self, _: Stage, _: &PoolName) -> Result<(), QueueError> {
        unreachable!()
    }

    async fn put(&self, _: Vec<Message>) -> Vec<Result<Put, QueueError>> {
        unreachable!()
    }

    async fn purge(&self, _: Stage, _: &str) -> Result<u64, QueueError> {
        unreachable!()
    }

    async fn puller(&self, _: Stage, _: &PoolName) -> Result<Box<dyn Puller>, QueueError> {
        unreachable!()
    }

    async fn priority_puller(&self, _: Stage, _: Vec<PoolPriority>) -> Result<Box<dyn Puller>, QueueError> {
        unreachable!()
    }

    async fn exhausted(&self) -> Result<Box<dyn ExhaustedTasks>, QueueError> {
        unreachable!()
    }
}

#[async_trait]
impl EventLog for Outage {
    async fn append(&self, _: Message, _: Option<&str>) -> Result<Appended, QueueError> {
        unreachable!()
    }

    async fn read_log(&self, _: u64) -> Result<Box<dyn LogReader>, QueueError> {
        unreachable!()
    }

    async fn log_entries(&self, _: &[u64]) -> Result<Vec<Option<LogEntry>>, QueueError> {
        unreachable!()
    }

    async fn log_end(&self) -> Result<u64, QueueError> {
        unreachable!()
    }

    async fn log_range(&self) -> Result<LogRange, QueueError> {
        unreachable!()
    }

    async fn trim_log(&self, _: u64) -> Result<(), QueueError> {
        unreachable!()
    }
}

#[async_trait]
impl DeadLetterQueue for Outage {
    async fn bury(&self, _: Message, _: &str) -> Result<(), QueueError> {
        unreachable!()
    }

    async fn dead_letters(&self, _: u64, _: usize) -> Result<Vec<LogEntry>, QueueError> {
        unreachable!()
    }

    async fn unbury(&self, _: u64) -> Result<(), QueueError> {
        unreachable!()
    }
}

#[async_trait]
impl Queue for Outage {
    async fn ensure_topology(&self) -> Result<(), QueueError> {
        unreachable!()
    }
}
