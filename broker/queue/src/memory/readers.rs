//! Readers of the log, watchers of a bucket and listeners to notices.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use super::MemoryCore;
use super::waiters::Topic;
use crate::port::{KeyValue, KeyWatcher, Listener, LogEntry, LogReader, Message, QueueError};

pub(super) struct MemoryLogReader {
    pub(super) shared: Arc<MemoryCore>,
    pub(super) next: u64,
    /// The entry given last: its position, and when it was stored.
    pub(super) last: Option<(u64, u64)>,
    /// The number of power losses that the entry is known to have survived.
    pub(super) losses: u64,
}

#[async_trait]
impl LogReader for MemoryLogReader {
    async fn next(&mut self, max: usize) -> Result<Vec<LogEntry>, QueueError> {
        let (from, last, losses) = (self.next, self.last, &mut self.losses);
        let found = self.shared.wait_for(Topic::Log, |state| {
            if *losses != state.losses {
                if let Some((seq, stored_ns)) = last
                    && seq >= state.log.first()
                    && state.log.stored_ns(seq) != Some(stored_ns)
                {
                    return Some(Err(QueueError::Lost { seq }));
                }
                *losses = state.losses;
            }
            let found = state.log.read(from, max);
            (!found.is_empty()).then_some(Ok(found))
        });
        let found = found.await?;
        self.last = found.last().map(|entry| (entry.seq, entry.stored_ns)).or(last);
        self.next = found.last().map_or(from, |entry| entry.seq + 1);
        Ok(found)
    }
}

pub(super) struct MemoryKeyWatcher {
    pub(super) shared: Arc<MemoryCore>,
    pub(super) bucket: &'static str,
    pub(super) seen: u64,
    pub(super) losses: u64,
}

#[async_trait]
impl KeyWatcher for MemoryKeyWatcher {
    async fn next(&mut self) -> Result<KeyValue, QueueError> {
        let (bucket, seen, losses) = (self.bucket, self.seen, self.losses);
        let value = self.shared.wait_for(Topic::Keys(bucket), |state| {
            if state.losses != losses {
                return Some(Err(state.losses));
            }
            state.buckets.entry(bucket).or_default().after(seen).map(Ok)
        });
        match value.await {
            Ok(value) => {
                self.seen = value.revision;
                Ok(value)
            }
            Err(losses) => {
                // Revisions went back: all stored values are reported again.
                (self.seen, self.losses) = (0, losses);
                let reason = "the connection was lost".to_owned();
                Err(QueueError::Unavailable { action: "watch keys", reason })
            }
        }
    }
}

pub(super) struct MemoryListener {
    pub(super) receiver: mpsc::UnboundedReceiver<Message>,
}

#[async_trait]
impl Listener for MemoryListener {
    async fn next(&mut self) -> Option<Message> {
        self.receiver.recv().await
    }
}
