//! The port: the interface that Millrace needs from a queue. `jetstream.rs` and `memory.rs`
//! implement it, and `conformance.rs` tests both for the same behaviour. Payloads are bytes here;
//! `broker.rs` adds types.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millrace_schemas::{PoolName, Stage};
use tokio::sync::watch;

/// An error of the queue.
#[derive(Debug, Clone, thiserror::Error)]
pub enum QueueError {
    /// The server cannot be reached or did not answer in time. The caller should retry.
    #[error("failed to {action}: {reason}")]
    Unavailable {
        /// The operation that failed.
        action: &'static str,
        /// What went wrong.
        reason: String,
    },
    /// The log lost entries that this reader had returned, because a machine lost power. Other
    /// entries may have their positions. The caller should read from an earlier position.
    #[error("failed to go on reading the log: it lost entries, seq={seq} and perhaps others")]
    Lost {
        /// The last position that was returned.
        seq: u64,
    },
    /// The server refused the request, and would refuse a retry.
    #[error("failed to {action}: the server refuses: {reason}")]
    Refused {
        /// The operation that failed.
        action: &'static str,
        /// The server's error message.
        reason: String,
    },
}

impl QueueError {
    /// Whether a retry may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Whether there was no room for what was to be stored.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Unavailable { reason, .. } if reason.contains(FULL))
    }
}

/// In the reason of an error of a stream without room.
pub(crate) const FULL: &str = "the stream is full";

/// A message to be put or appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its subject.
    pub subject: String,
    /// Its content, at most [`MAX_PAYLOAD_BYTES`](millrace_schemas::limits::MAX_PAYLOAD_BYTES).
    pub payload: Bytes,
    /// Further headers, names and values.
    pub headers: Vec<(&'static str, String)>,
}

impl Message {
    /// The value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }
}

/// What became of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// The task is queued.
    Queued,
    /// A task of this subject was queued before and is not settled; nothing was added.
    AlreadyQueued,
}

/// What became of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Appended {
    /// Position in the log; of the first entry with this id if this was not it.
    pub seq: u64,
    /// Whether this entry was the first with its id within the server's window.
    pub first: bool,
}

/// An entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Position, from 1, without gaps.
    pub seq: u64,
    /// When the server stored it, in nanoseconds of the server's clock. A position that was lost and taken again
    /// has another.
    pub stored_ns: u64,
    /// Subject, payload and headers.
    pub message: Message,
}

/// Which log it is, and which entries it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRange {
    /// Stays the same for as long as the log exists; another log of the same name has another.
    pub id: u64,
    /// Position of the oldest entry that was not trimmed; the next position where there is none.
    pub first: u64,
    /// Position of the newest entry; 0 before the first.
    pub last: u64,
    /// Bytes that its entries take.
    pub bytes: u64,
    /// Bytes that they may take; `None` where only the server's own limit applies.
    pub max_bytes: Option<u64>,
}

/// What a key must hold for a write to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// Nothing in particular.
    Any,
    /// No value.
    Absent,
    /// The value of this revision.
    Revision(u64),
}

/// What became of a write to a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// The value was stored under this revision.
    At(u64),
    /// The key held something else than expected; nothing was written.
    Conflict,
}

/// The value of a key.
#[derive(Debug, Clone)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value; empty where the server stored a copy of another subject's value here. A copy is
    /// no value: the key's owner overwrites it at its revision.
    pub value: Bytes,
    /// Grows with each write.
    pub revision: u64,
}

/// Tasks: pools, puts and pulls.
#[async_trait]
pub trait TaskQueue: Send + Sync + 'static {
    /// Creates the consumer of a pool unless it exists.
    async fn ensure_pool(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError>;

    /// Creates the consumer of a partition unless it exists. A partition is a pool whose tasks go
    /// to the waiting puller of highest priority.
    async fn ensure_partition(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError>;

    /// Removes the consumer of a pool without pullers, if it exists. Tasks of the pool stay queued,
    /// for its next consumer or a purge.
    async fn remove_pool(&self, _stage: Stage, _pool: &PoolName) -> Result<(), QueueError> {
        Ok(())
    }

    /// How long a task of a pool may be in flight without a heartbeat. `None` where that is
    /// unknown, for example before the pool exists.
    async fn ack_wait(&self, _stage: Stage, _pool: &PoolName) -> Result<Option<Duration>, QueueError> {
        Ok(None)
    }

    /// Puts tasks; the results are in the same order. A failed put may have stored its task all the
    /// same; repeating it is harmless.
    async fn put(&self, tasks: Vec<Message>) -> Vec<Result<Put, QueueError>>;

    /// Drops the tasks whose subjects match `filter` from the queue, and returns how many. A task
    /// in flight remains with its worker, but is not delivered again: the log decides its outcome.
    async fn purge(&self, stage: Stage, filter: &str) -> Result<u64, QueueError>;

    /// Pulls tasks of a pool. Waits until the pool exists.
    async fn puller(&self, stage: Stage, pool: &PoolName) -> Result<Box<dyn Puller>, QueueError>;

    /// Pulls tasks of several partitions, and of plain pools beside them, each with its own pull
    /// priority. A task goes to the puller of highest priority that has a free slot at that moment.
    /// If that puller has no free slot or is gone, the task goes to the next one at once. Among
    /// pullers of the same priority, any may get it.
    async fn priority_puller(
        &self,
        stage: Stage,
        partitions: Vec<PoolPriority>,
    ) -> Result<Box<dyn Puller>, QueueError>;

    /// Waits for tasks that reached their delivery limit, takes them out of their stream and
    /// returns them, with the reason as a header. Each is returned again until its lease is `done`.
    async fn exhausted(&self) -> Result<Box<dyn ExhaustedTasks>, QueueError>;
}

/// The log.
#[async_trait]
pub trait EventLog: Send + Sync + 'static {
    /// Appends an entry to the log and waits until it is stored. Within the server's deduplication
    /// window the first entry with an id wins and a later one is dropped. An entry without an id is
    /// never dropped.
    async fn append(&self, entry: Message, id: Option<&str>) -> Result<Appended, QueueError>;

    /// Reads the log from position `from` (1 is the first) on, and then new entries. Trimmed
    /// entries are skipped.
    async fn read_log(&self, from: u64) -> Result<Box<dyn LogReader>, QueueError>;

    /// The entries of the log at these positions, in the same order; `None` for a position without
    /// an entry. Any replica answers, so the newest entries may be missing.
    async fn log_entries(&self, seqs: &[u64]) -> Result<Vec<Option<LogEntry>>, QueueError>;

    /// Position of the newest entry of the log; 0 if it is empty.
    async fn log_end(&self) -> Result<u64, QueueError>;

    /// The identity of the log and the range of its entries, from the log's leader.
    async fn log_range(&self) -> Result<LogRange, QueueError>;

    /// Removes entries before position `before` from the log, for good. Positions of the others do
    /// not change.
    async fn trim_log(&self, before: u64) -> Result<(), QueueError>;
}

/// Keys with revisions, in buckets.
#[async_trait]
pub trait KeyStore: Send + Sync + 'static {
    /// The value of a key, from any replica, which may lag behind. For readers that do not write
    /// the key.
    async fn get(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError>;

    /// The value of a key from the leader of its stream, for a later write with
    /// [`Expect::Revision`].
    async fn get_latest(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        self.get(bucket, key).await
    }

    /// Writes a key if its value is as expected.
    async fn set(
        &self,
        bucket: &'static str,
        key: &str,
        value: Bytes,
        expect: Expect,
    ) -> Result<Written, QueueError>;

    /// Current values of all keys of a bucket, then every change, until dropped.
    async fn watch(&self, bucket: &'static str) -> Result<Box<dyn KeyWatcher>, QueueError>;
}

/// Notices, which reach listeners and are stored nowhere.
#[async_trait]
pub trait Notices: Send + Sync + 'static {
    /// Sends a notice to all listeners. It may be lost.
    async fn notice(&self, subject: String, payload: Bytes) -> Result<(), QueueError>;

    /// Listens to notices whose subjects match `filter`.
    async fn listen(&self, filter: &str) -> Result<Box<dyn Listener>, QueueError>;
}

/// The dead-letter queue.
#[async_trait]
pub trait DeadLetterQueue: Send + Sync + 'static {
    /// Stores a dead letter: the bytes of the task, with the reason in a header. The first with an
    /// id wins.
    async fn bury(&self, letter: Message, id: &str) -> Result<(), QueueError>;

    /// The dead letters from position `from` on (1 is the first), oldest first, at most `max`.
    async fn dead_letters(&self, from: u64, max: usize) -> Result<Vec<LogEntry>, QueueError>;

    /// Removes a dead letter.
    async fn unbury(&self, seq: u64) -> Result<(), QueueError>;
}

/// The interface that Millrace needs from a queue.
#[async_trait]
pub trait Queue: TaskQueue + EventLog + KeyStore + Notices + DeadLetterQueue {
    /// Creates the missing streams and buckets. Repeated and concurrent calls are harmless.
    async fn ensure_topology(&self) -> Result<(), QueueError>;
}

/// A pool, with a puller's priority among the pullers of that pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolPriority {
    /// The pool.
    pub pool: PoolName,
    /// From 0, the highest, to
    /// [`MAX_PULL_PRIORITY`](millrace_schemas::limits::MAX_PULL_PRIORITY).
    pub priority: u8,
}

/// Pulls tasks for one process.
#[async_trait]
pub trait Puller: Send {
    /// Waits for tasks, requests at most `free` of them from the server, and returns 1 to `free`.
    /// Dropping the future loses nothing: the next call returns tasks delivered meanwhile. A
    /// call with `free` 0 waits for ever.
    async fn pull(&mut self, free: usize) -> Result<Vec<Delivery>, QueueError>;

    /// Withdraws the open requests. Delivered tasks that no call has returned yet go back to the
    /// queue, so that no task waits for a worker that leaves.
    async fn close(&mut self);
}

/// A task in flight.
pub struct Delivery {
    /// Subject, payload and headers.
    pub message: Message,
    /// Which delivery of this task, from 1.
    pub attempt: u64,
    /// Position in its stage's stream; with the subject, names this put of the task.
    pub seq: u64,
    /// When the server stored this put of the task, in nanoseconds of the server's clock. Each put
    /// of the same task has another time, even where a part of the stream was lost and positions
    /// are reused.
    pub stored_ns: u64,
    /// Settles it.
    pub lease: Arc<dyn Lease>,
}

/// The lease of a delivered task. No correctness depends on its being exclusive: only the log
/// decides.
#[async_trait]
pub trait Lease: Send + Sync {
    /// Sends a heartbeat, which renews the lease.
    async fn heartbeat(&self) -> Result<(), QueueError>;
    /// The outcome is in the log, or the task is no longer needed: the queue forgets it.
    async fn done(&self) -> Result<(), QueueError>;
    /// The task is delivered again, to any worker.
    async fn retry_after(&self, delay: Duration) -> Result<(), QueueError>;
    /// Nobody can do the task, and its dead letter is stored already.
    async fn poison(&self, reason: &str) -> Result<(), QueueError>;
}

/// Reads the log in order.
#[async_trait]
pub trait LogReader: Send {
    /// Waits for entries and returns 1 to `max`, in order, without gaps except for trimmed entries.
    /// Dropping the future loses nothing. After [`QueueError::Lost`] it returns no more entries.
    async fn next(&mut self, max: usize) -> Result<Vec<LogEntry>, QueueError>;
}

/// Watches keys.
#[async_trait]
pub trait KeyWatcher: Send {
    /// Waits for the next value. Dropping the future loses no value, but the first read of all
    /// values begins again.
    async fn next(&mut self) -> Result<KeyValue, QueueError>;

    /// Whether the first read of all values is over. A lost connection makes it `false` until they
    /// are read again.
    fn current(&self) -> watch::Receiver<bool> {
        watch::channel(true).1
    }
}

/// Listens to notices.
#[async_trait]
pub trait Listener: Send {
    /// Waits for the next notice; `None` when the connection is closed. Dropping the future loses nothing.
    async fn next(&mut self) -> Option<Message>;
}

/// Tasks that were delivered too often.
#[async_trait]
pub trait ExhaustedTasks: Send {
    /// Waits for the next. Dropping the future loses nothing.
    async fn next(&mut self) -> Result<Exhausted, QueueError>;
}

/// A task that was delivered too often.
pub struct Exhausted {
    /// The task as it was put, with the reason in [`REASON_HEADER`](millrace_schemas::subjects::REASON_HEADER).
    pub message: Message,
    /// Position in its stage's stream.
    pub seq: u64,
    /// Removes it from its stream, and the notice of it.
    pub lease: Arc<dyn Lease>,
}
