//! The queue in memory: same behaviour as on the server, no threads, and only the clock it is handed. Tests
//! and the simulator run on it; given the same calls and times it does the same, to the byte.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millrace_schemas::{PoolName, Stage, subjects};
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::filter;
use crate::partitions::{Part, PartitionPuller};
use crate::port::{
    Appended, DeadLetterQueue, EventLog, ExhaustedTasks, Expect, FULL, KeyStore, KeyValue, KeyWatcher,
    Listener, LogEntry, LogRange, LogReader, Message, Notices, PoolPriority, Puller, Put, Queue, QueueError,
    TaskQueue, Written,
};
use crate::settings::{Durability, QueueSettings};
use deliveries::{MemoryExhausted, MemoryPuller};
use readers::{MemoryKeyWatcher, MemoryListener, MemoryLogReader};
use records::{Bucket, Records};
use tasks::Tasks;
use waiters::{Look, Topic, Waiters};

mod deliveries;
mod power;
mod priorities;
mod readers;
mod records;
mod tasks;
mod waiters;
#[cfg(test)]
mod tests;

/// The pool of the tasks that were delivered too often.
const EXHAUSTED_POOL: &str = "exhausted";

/// A queue in memory. Clones share it.
#[derive(Clone)]
pub struct MemoryQueue {
    shared: Arc<MemoryCore>,
}

struct MemoryCore {
    settings: QueueSettings,
    clock: Arc<dyn Clock>,
    state: Mutex<MemoryState>,
    waiters: Waiters,
}

#[derive(Default)]
struct MemoryState {
    tasks: BTreeMap<Stage, Tasks>,
    exhausted: Tasks,
    log: Records,
    dead: Records,
    buckets: BTreeMap<&'static str, Bucket>,
    losses: u64,
    unsynced: power::Unsynced,
    waiting: priorities::Waiting,
    listeners: Vec<(String, mpsc::UnboundedSender<Message>)>,
}

impl MemoryQueue {
    /// An empty queue with the settings that a real one has.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with_settings(clock, QueueSettings::default())
    }

    /// An empty queue.
    #[must_use]
    pub fn with_settings(clock: Arc<dyn Clock>, settings: QueueSettings) -> Self {
        let (state, waiters) = (Mutex::new(MemoryState::default()), Waiters::default());
        Self { shared: Arc::new(MemoryCore { settings, clock, state, waiters }) }
    }
}

impl MemoryQueue {
    /// Tasks that are queued or in flight, over all stages.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.shared.state().tasks.values().map(Tasks::len).sum()
    }

    /// How often its machine lost its power, and writes with it.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.shared.state().losses
    }

    /// As [`Self::power_loss`], with nothing lost but what follows position `end` of the log, synced or not.
    pub fn lose_log_after(&self, end: u64) {
        self.shared.change(|state| {
            state.log.truncate(end);
            state.losses += 1;
        });
        self.shared.waiters.wake_all();
    }

    /// Its machine loses power and restarts at once. Each stream and bucket loses a part of its
    /// unsynced writes, drawn by `seed`; where all is synced, nothing is lost.
    pub fn power_loss(&self, seed: u64) {
        if self.shared.settings.durability != Durability::Synced {
            power::strike(&mut self.shared.state(), seed);
        }
        self.shared.waiters.wake_all();
    }
}

impl MemoryCore {
    fn state(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().expect("no code panics while it holds the queue's state")
    }

    /// Changes the state. Those who wait for tasks are woken as far as it concerns them; [`Waiters`] has the others.
    fn change<T>(&self, f: impl FnOnce(&mut MemoryState) -> T) -> T {
        let mut state = self.state();
        self.before_change(&mut state);
        let result = f(&mut state);
        self.tell(state);
        result
    }

    /// The same, and wakes those who wait for a topic.
    fn change_and_wake<T>(&self, topic: &Topic, f: impl FnOnce(&mut MemoryState) -> T) -> T {
        let result = self.change(f);
        self.waiters.wake(topic);
        result
    }

    /// Wakes those who wait for tasks that there are now.
    fn tell(&self, mut state: MutexGuard<'_, MemoryState>) {
        let is_exhausted = state.exhausted.news().is_some();
        let stages = state.tasks.iter_mut().filter_map(|(stage, tasks)| Some((*stage, tasks.news()?)));
        let stages: Vec<_> = stages.collect();
        drop(state);
        for (stage, news) in stages {
            self.waiters.tell(stage, news);
        }
        if is_exhausted {
            self.waiters.wake(&Topic::Exhausted);
        }
    }

    fn before_change(&self, state: &mut MemoryState) {
        if let Durability::Interval(every) = self.settings.durability {
            power::before_change(state, self.clock.now(), every);
        }
    }

    /// Ends what ran out by now.
    fn expire(&self, state: &mut MemoryState) {
        let now = self.clock.now();
        let max_deliver = self.settings.max_deliver.unsigned_abs();
        let mut found = Vec::new();
        for (stage, tasks) in &mut state.tasks {
            found.extend(tasks.expire(now, max_deliver).into_iter().map(|seq| (*stage, seq)));
        }
        state.exhausted.expire(now, u64::MAX);
        for (stage, seq) in found {
            let notice =
                Message { subject: format!("{stage}.{seq}"), payload: Bytes::new(), headers: vec![] };
            state.exhausted.put(EXHAUSTED_POOL, notice, now);
        }
    }

    /// Waits until `look` finds something. Looks again after every change of the topic, and for tasks whenever a lease
    /// ends.
    async fn wait_for<T>(&self, topic: Topic, mut look: impl FnMut(&mut MemoryState) -> Option<T>) -> T {
        self.wait_in_turn(topic, |state| look(state).into()).await
    }

    /// The same, where `look` may let others look first.
    async fn wait_in_turn<T>(&self, topic: Topic, mut look: impl FnMut(&mut MemoryState) -> Look<T>) -> T {
        let waiters = self.waiters.of(&topic);
        loop {
            let changed = waiters.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (found, timer) = {
                let mut state = self.state();
                if matches!(topic, Topic::Tasks(..) | Topic::Exhausted) {
                    self.expire(&mut state);
                }
                let looked = (look(&mut state), state.next_timer(&topic));
                self.tell(state);
                looked
            };
            match found {
                Look::Found(found) => return found,
                Look::Nothing => {}
                Look::AfterOthers => {
                    tokio::task::yield_now().await;
                    continue;
                }
            }
            match timer {
                Some(at) => tokio::select! {
                    biased;
                    () = changed => {}
                    () = self.clock.sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }
}

impl MemoryState {
    /// When the first lease or delay ends that who waits for `topic` has to see.
    fn next_timer(&self, topic: &Topic) -> Option<Duration> {
        match topic {
            Topic::Tasks(stage, _) => self.tasks.get(stage)?.next_timer(),
            Topic::Exhausted => {
                self.tasks.values().chain([&self.exhausted]).filter_map(Tasks::next_timer).min()
            }
            Topic::Log | Topic::Keys(_) => None,
        }
    }
}

/// The pool token of a task's subject.
fn pool_of(subject: &str) -> &str {
    subject.split('.').nth(3).unwrap_or_default()
}

#[async_trait]
impl TaskQueue for MemoryQueue {
    async fn ensure_pool(&self, _stage: Stage, _pool: &PoolName) -> Result<(), QueueError> {
        Ok(())
    }

    async fn ensure_partition(&self, _stage: Stage, _pool: &PoolName) -> Result<(), QueueError> {
        Ok(())
    }

    async fn ack_wait(&self, _stage: Stage, _pool: &PoolName) -> Result<Option<Duration>, QueueError> {
        Ok(Some(self.shared.settings.ack_wait))
    }

    async fn put(&self, tasks: Vec<Message>) -> Vec<Result<Put, QueueError>> {
        let now = self.shared.clock.now();
        self.shared.change(|state| {
            let put = |task: Message| {
                let stage = subjects::stage_of_task(&task.subject).ok_or_else(|| QueueError::Refused {
                    action: "put a task",
                    reason: format!("no stream takes subject={}", task.subject),
                })?;
                let pool = pool_of(&task.subject).to_owned();
                Ok(state.tasks.entry(stage).or_default().put(&pool, task, now))
            };
            tasks.into_iter().map(put).collect()
        })
    }

    async fn purge(&self, stage: Stage, filter: &str) -> Result<u64, QueueError> {
        Ok(self.shared.change(|state| state.tasks.entry(stage).or_default().purge(filter)))
    }

    async fn puller(&self, stage: Stage, pool: &PoolName) -> Result<Box<dyn Puller>, QueueError> {
        Ok(Box::new(MemoryPuller { shared: self.shared.clone(), stage, pool: pool.clone(), priority: 0 }))
    }

    async fn priority_puller(
        &self,
        stage: Stage,
        partitions: Vec<PoolPriority>,
    ) -> Result<Box<dyn Puller>, QueueError> {
        let part = |PoolPriority { pool, priority }| {
            let puller = MemoryPuller { shared: self.shared.clone(), stage, pool, priority };
            (priority, Box::new(puller) as Box<dyn Part>)
        };
        Ok(Box::new(PartitionPuller::new(partitions.into_iter().map(part).collect())))
    }

    async fn exhausted(&self) -> Result<Box<dyn ExhaustedTasks>, QueueError> {
        Ok(Box::new(MemoryExhausted { shared: self.shared.clone() }))
    }
}

#[async_trait]
impl EventLog for MemoryQueue {
    async fn append(&self, entry: Message, id: Option<&str>) -> Result<Appended, QueueError> {
        let (now, window) = (self.shared.clock.now(), self.shared.settings.dedup_window);
        let most = self.shared.settings.max_log_bytes.unsigned_abs();
        self.shared.change_and_wake(&Topic::Log, |state| {
            if state.log.bytes() >= most {
                return Err(QueueError::Unavailable { action: "append to the log", reason: FULL.to_owned() });
            }
            Ok(state.log.append(entry, id, now, window))
        })
    }

    async fn read_log(&self, from: u64) -> Result<Box<dyn LogReader>, QueueError> {
        let losses = self.losses();
        Ok(Box::new(MemoryLogReader { shared: self.shared.clone(), next: from.max(1), last: None, losses }))
    }

    async fn log_entries(&self, seqs: &[u64]) -> Result<Vec<Option<LogEntry>>, QueueError> {
        let state = self.shared.state();
        Ok(seqs.iter().map(|seq| state.log.get(*seq)).collect())
    }

    async fn log_end(&self) -> Result<u64, QueueError> {
        Ok(self.shared.state().log.end())
    }

    async fn log_range(&self) -> Result<LogRange, QueueError> {
        let state = self.shared.state();
        Ok(LogRange {
            id: 1,
            first: state.log.first(),
            last: state.log.end(),
            bytes: state.log.bytes(),
            max_bytes: Some(self.shared.settings.max_log_bytes.unsigned_abs()),
        })
    }

    async fn trim_log(&self, before: u64) -> Result<(), QueueError> {
        self.shared.change(|state| state.log.trim(before));
        Ok(())
    }
}

#[async_trait]
impl KeyStore for MemoryQueue {
    async fn get(&self, bucket: &'static str, key: &str) -> Result<Option<KeyValue>, QueueError> {
        Ok(self.shared.state().buckets.get(bucket).and_then(|bucket| bucket.get(key)))
    }

    async fn set(
        &self,
        bucket: &'static str,
        key: &str,
        value: Bytes,
        expect: Expect,
    ) -> Result<Written, QueueError> {
        Ok(self.shared.change_and_wake(&Topic::Keys(bucket), |state| {
            state.buckets.entry(bucket).or_default().set(key, value, expect)
        }))
    }

    async fn watch(&self, bucket: &'static str) -> Result<Box<dyn KeyWatcher>, QueueError> {
        let losses = self.losses();
        Ok(Box::new(MemoryKeyWatcher { shared: self.shared.clone(), bucket, seen: 0, losses }))
    }
}

#[async_trait]
impl Notices for MemoryQueue {
    async fn notice(&self, subject: String, payload: Bytes) -> Result<(), QueueError> {
        let notice = Message { subject, payload, headers: Vec::new() };
        self.shared.state().listeners.retain(|(filter, listener)| {
            !listener.is_closed()
                && (!filter::matches(filter, &notice.subject) || listener.send(notice.clone()).is_ok())
        });
        Ok(())
    }

    async fn listen(&self, filter: &str) -> Result<Box<dyn Listener>, QueueError> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.shared.state().listeners.push((filter.to_owned(), sender));
        Ok(Box::new(MemoryListener { receiver }))
    }
}

#[async_trait]
impl DeadLetterQueue for MemoryQueue {
    async fn bury(&self, letter: Message, id: &str) -> Result<(), QueueError> {
        let (now, window) = (self.shared.clock.now(), self.shared.settings.dedup_window);
        self.shared.change(|state| state.dead.append(letter, Some(id), now, window));
        Ok(())
    }

    async fn dead_letters(&self, from: u64, max: usize) -> Result<Vec<LogEntry>, QueueError> {
        Ok(self.shared.state().dead.read(from, max))
    }

    async fn unbury(&self, seq: u64) -> Result<(), QueueError> {
        self.shared.change(|state| state.dead.remove(seq));
        Ok(())
    }
}

#[async_trait]
impl Queue for MemoryQueue {
    async fn ensure_topology(&self) -> Result<(), QueueError> {
        Ok(())
    }
}
