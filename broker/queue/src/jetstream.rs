//! The queue on NATS JetStream. What is made on the server is in `topology.rs`; the rest is one file per
//! side of the port.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millrace_schemas::{PoolName, Stage, subjects};

use crate::partitions::{Part, PartitionPuller};
use crate::port::{
    Appended, DeadLetterQueue, EventLog, ExhaustedTasks, Expect, KeyStore, KeyValue, KeyWatcher, Listener,
    LogEntry, LogRange, LogReader, Message, Notices, PoolPriority, Puller, Put, Queue, QueueError, TaskQueue,
    Written,
};
use connection::Connection;
use publish::Store;

pub use connection::{Credentials, JetStreamOptions, Storage, Tls, without_password};
pub use report::StreamReport;

mod connection;
mod violation;
mod outage;
mod api;
mod report;
mod message;
mod topology;
mod publish;
mod puller;
mod part;
mod lease;
mod ordered;
mod replicas;
mod entries;
mod keys;
mod watcher;
mod dead;

/// Tasks whose acknowledgements are awaited at once; the server buffers no more than 10,000 per stream.
const PUTS_IN_FLIGHT: usize = 4_096;

/// A connection to JetStream. It reconnects for ever; what was asked meanwhile fails as unavailable.
pub struct JetStream {
    pub(crate) connection: Arc<Connection>,
}

impl JetStream {
    /// Connects, trying again until `options.connect_timeout` is over. `name` is how the server lists the
    /// connection.
    ///
    /// # Errors
    /// No server answers in time, or it refuses the credentials.
    pub async fn connect(url: &str, name: &str, options: JetStreamOptions) -> Result<Arc<Self>, QueueError> {
        let connection = Connection::open(url, name, options).await?;
        Ok(Arc::new(Self { connection: Arc::new(connection) }))
    }

    /// The name of the server that leads the log in a cluster; `None` for a single server, or
    /// before a leader is elected.
    ///
    /// # Errors
    /// No server answers, or there is no log.
    pub async fn log_leader(&self) -> Result<Option<String>, QueueError> {
        self.stream_leader(subjects::LOG_STREAM).await
    }

    /// The same of any stream.
    ///
    /// # Errors
    /// No server answers, or there is no such stream.
    pub async fn stream_leader(&self, stream: &str) -> Result<Option<String>, QueueError> {
        api::stream_leader(&self.connection, stream).await
    }

    /// How full a stream is, and how many servers have all of it.
    ///
    /// # Errors
    /// No server answers, the stream has no leader, or there is none of this name.
    pub async fn stream_report(&self, stream: &str) -> Result<StreamReport, QueueError> {
        api::stream_report(&self.connection, stream).await
    }

    /// Tasks that are queued or in flight, over all stages.
    ///
    /// # Errors
    /// No server answers, or there are no streams.
    pub async fn tasks_left(&self) -> Result<u64, QueueError> {
        let mut left = 0;
        for stage in Stage::QUEUED {
            left += api::stream_state(&self.connection, &subjects::task_stream(stage)).await?.messages;
        }
        Ok(left)
    }
}

#[async_trait]
impl TaskQueue for JetStream {
    async fn ensure_pool(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        topology::ensure_pool(&self.connection, stage, pool).await
    }

    async fn ensure_partition(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        topology::ensure_partition(&self.connection, stage, pool).await
    }

    async fn remove_pool(&self, stage: Stage, pool: &PoolName) -> Result<(), QueueError> {
        api::delete_consumer(&self.connection, &subjects::task_stream(stage), &subjects::consumer(pool)).await
    }

    async fn ack_wait(&self, stage: Stage, pool: &PoolName) -> Result<Option<Duration>, QueueError> {
        api::ack_wait(&self.connection, &subjects::task_stream(stage), &subjects::consumer(pool)).await
    }

    async fn put(&self, tasks: Vec<Message>) -> Vec<Result<Put, QueueError>> {
        let mut results = Vec::with_capacity(tasks.len());
        let mut tasks = tasks.into_iter();
        while results.len() < results.capacity() {
            let mut sent = Vec::with_capacity(tasks.len().min(PUTS_IN_FLIGHT));
            for task in tasks.by_ref().take(PUTS_IN_FLIGHT) {
                sent.push(self.connection.publisher.send(task, &[]).await);
            }
            if sent.is_empty() {
                break;
            }
            for stored in sent {
                let stored = match stored {
                    Ok(stored) => stored.wait("put a task").await,
                    Err(e) => Err(e),
                };
                results.push(stored.and_then(|stored| match stored {
                    Store::At { .. } => Ok(Put::Queued),
                    Store::SubjectTaken => Ok(Put::AlreadyQueued),
                    Store::WrongSequence => Err(publish::unexpected("put a task")),
                }));
            }
        }
        results
    }

    async fn purge(&self, stage: Stage, filter: &str) -> Result<u64, QueueError> {
        api::purge(&self.connection, &subjects::task_stream(stage), filter).await
    }

    async fn puller(&self, stage: Stage, pool: &PoolName) -> Result<Box<dyn Puller>, QueueError> {
        let (stream, consumer) = (subjects::task_stream(stage), subjects::consumer(pool));
        Ok(Box::new(puller::JetStreamPuller::new(self.connection.clone(), &stream, &consumer)))
    }

    async fn priority_puller(
        &self,
        stage: Stage,
        partitions: Vec<PoolPriority>,
    ) -> Result<Box<dyn Puller>, QueueError> {
        let stream = subjects::task_stream(stage);
        let part = |PoolPriority { pool, priority }| {
            let (connection, consumer) = (self.connection.clone(), subjects::consumer(&pool));
            let part = puller::JetStreamPuller::new(connection, &stream, &consumer);
            (priority, Box::new(part.prioritized(priority)) as Box<dyn Part>)
        };
        Ok(Box::new(PartitionPuller::new(partitions.into_iter().map(part).collect())))
    }

    async fn exhausted(&self) -> Result<Box<dyn ExhaustedTasks>, QueueError> {
        dead::exhausted(self.connection.clone()).await
    }
}

#[async_trait]
impl EventLog for JetStream {
    async fn append(&self, entry: Message, id: Option<&str>) -> Result<Appended, QueueError> {
        let id = id.map(|id| (publish::MESSAGE_ID, id.to_owned()));
        let stored = self.connection.publisher.send(entry, id.as_slice()).await?;
        match stored.wait("append to the log").await? {
            Store::At { seq, duplicate } => Ok(Appended { seq, first: !duplicate }),
            Store::SubjectTaken | Store::WrongSequence => Err(publish::unexpected("append to the log")),
        }
    }

    async fn read_log(&self, from: u64) -> Result<Box<dyn LogReader>, QueueError> {
        Ok(Box::new(ordered::JetStreamLog::new(self.connection.clone(), subjects::LOG_STREAM, from)))
    }

    async fn log_entries(&self, seqs: &[u64]) -> Result<Vec<Option<LogEntry>>, QueueError> {
        entries::at(&self.connection, subjects::LOG_STREAM, seqs).await
    }

    async fn log_end(&self) -> Result<u64, QueueError> {
        Ok(api::stream_state(&self.connection, subjects::LOG_STREAM).await?.last_seq)
    }

    async fn log_range(&self) -> Result<LogRange, QueueError> {
        api::stream_range(&self.connection, subjects::LOG_STREAM).await
    }

    async fn trim_log(&self, before: u64) -> Result<(), QueueError> {
        api::trim(&self.connection, subjects::LOG_STREAM, before).await
    }
}

#[async_trait]
impl KeyStore for JetStream {
    async fn get(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        keys::get(&self.connection, bucket, key).await
    }

    async fn get_latest(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        keys::get_latest(&self.connection, bucket, key).await
    }

    async fn set(
        &self,
        bucket: &'static str,
        key: &str,
        value: Bytes,
        expect: Expect,
    ) -> Result<Written, QueueError> {
        keys::set(&self.connection, bucket, key, value, expect).await
    }

    async fn watch(&self, bucket: &'static str) -> Result<Box<dyn KeyWatcher>, QueueError> {
        Ok(Box::new(watcher::JetStreamWatcher::new(self.connection.clone(), bucket)))
    }
}

#[async_trait]
impl Notices for JetStream {
    async fn notice(&self, subject: String, payload: Bytes) -> Result<(), QueueError> {
        self.connection
            .client
            .publish(subject, payload)
            .await
            .map_err(|e| QueueError::Unavailable { action: "send a notice", reason: e.to_string() })
    }

    async fn listen(&self, filter: &str) -> Result<Box<dyn Listener>, QueueError> {
        let subscriber = self.connection.subscribe("listen to notices", filter).await?;
        Ok(Box::new(message::JetStreamListener { subscriber }))
    }
}

#[async_trait]
impl DeadLetterQueue for JetStream {
    async fn bury(&self, letter: Message, id: &str) -> Result<(), QueueError> {
        let id = [(publish::MESSAGE_ID, id.to_owned())];
        let stored = self.connection.publisher.send(letter, &id).await?;
        match stored.wait("bury a task").await? {
            Store::At { .. } => Ok(()),
            Store::SubjectTaken | Store::WrongSequence => Err(publish::unexpected("bury a task")),
        }
    }

    async fn dead_letters(&self, from: u64, max: usize) -> Result<Vec<LogEntry>, QueueError> {
        dead::letters(&self.connection, from, max).await
    }

    async fn unbury(&self, seq: u64) -> Result<(), QueueError> {
        api::delete_message(&self.connection, subjects::DEAD_STREAM, seq).await
    }
}

#[async_trait]
impl Queue for JetStream {
    async fn ensure_topology(&self) -> Result<(), QueueError> {
        topology::ensure(&self.connection).await
    }
}

const _: () = assert!(PUTS_IN_FLIGHT * 2 < 10_000, "two coordinators' puts must fit the server's buffer");
