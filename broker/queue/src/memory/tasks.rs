//! One work queue: its tasks wait, are in flight under a lease, or are exhausted. This module has
//! no clock and does not wait.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::waiters::News;
use crate::filter;
use crate::port::{Message, Put};

/// A queue of tasks with at most one per subject.
#[derive(Debug, Default, Clone)]
pub(super) struct Tasks {
    next_seq: u64,
    entries: BTreeMap<u64, Entry>,
    subjects: BTreeMap<String, u64>,
    ready: BTreeMap<String, Ready>,
    /// When a lease or a delay ends, and of which task.
    timers: BTreeSet<(Duration, u64)>,
    /// What nobody who waits was told yet.
    news: News,
}

#[derive(Debug, Clone)]
struct Entry {
    message: Message,
    /// When it was put, in nanoseconds.
    stored_ns: u64,
    pool: String,
    attempt: u64,
    state: TaskState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TaskState {
    Ready,
    /// A lease or a delay runs until then.
    Until(Duration),
    Exhausted,
}

/// Tasks of a pool that wait; what was given back goes first. May name tasks that are gone.
#[derive(Debug, Default, Clone)]
struct Ready {
    again: VecDeque<u64>,
    fresh: VecDeque<u64>,
}

/// A task handed out.
#[derive(Debug)]
pub(super) struct Handed {
    pub(super) seq: u64,
    pub(super) attempt: u64,
    pub(super) stored_ns: u64,
    pub(super) message: Message,
}

impl Tasks {
    pub(super) fn put(&mut self, pool: &str, message: Message, now: Duration) -> Put {
        if self.subjects.contains_key(&message.subject) {
            return Put::AlreadyQueued;
        }
        self.next_seq += 1;
        let seq = self.next_seq;
        self.subjects.insert(message.subject.clone(), seq);
        self.ready.entry(pool.to_owned()).or_default().fresh.push_back(seq);
        self.news.ready.insert(pool.to_owned());
        let (pool, stored_ns) = (pool.to_owned(), now.as_nanos() as u64);
        self.entries.insert(seq, Entry { message, stored_ns, pool, attempt: 0, state: TaskState::Ready });
        Put::Queued
    }

    /// Ends leases and delays that ran until `now`; gives the tasks that were delivered `max_deliver` times.
    pub(super) fn expire(&mut self, now: Duration, max_deliver: u64) -> Vec<u64> {
        let mut exhausted = Vec::new();
        while let Some(&(at, seq)) = self.timers.first() {
            if at > now {
                break;
            }
            self.timers.pop_first();
            let Some(entry) = self.entries.get_mut(&seq) else { continue };
            if entry.state != TaskState::Until(at) {
                continue;
            }
            if entry.attempt >= max_deliver {
                entry.state = TaskState::Exhausted;
                exhausted.push(seq);
            } else {
                entry.state = TaskState::Ready;
                self.ready.entry(entry.pool.clone()).or_default().again.push_back(seq);
                self.news.ready.insert(entry.pool.clone());
            }
        }
        exhausted
    }

    /// What changed for those who wait since this was asked last.
    pub(super) fn news(&mut self) -> Option<News> {
        (self.news != News::default()).then(|| std::mem::take(&mut self.news))
    }

    /// When the next lease or delay ends.
    pub(super) fn next_timer(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Whether a task of a pool may be handed out.
    pub(super) fn has_ready(&self, pool: &str) -> bool {
        self.ready.get(pool).is_some_and(|ready| !ready.again.is_empty() || !ready.fresh.is_empty())
    }

    /// Hands out up to `max` tasks of a pool under leases that run until `until`.
    pub(super) fn take(&mut self, pool: &str, max: usize, until: Duration) -> Vec<Handed> {
        let Some(ready) = self.ready.get_mut(pool) else { return Vec::new() };
        let mut handed = Vec::new();
        while handed.len() < max {
            let Some(seq) = ready.again.pop_front().or_else(|| ready.fresh.pop_front()) else { break };
            let Some(entry) = self.entries.get_mut(&seq) else { continue };
            if entry.state != TaskState::Ready {
                continue;
            }
            entry.attempt += 1;
            entry.state = TaskState::Until(until);
            self.news.ends_earlier |= self.timers.first().is_none_or(|(first, _)| until < *first);
            self.timers.insert((until, seq));
            let (attempt, stored_ns) = (entry.attempt, entry.stored_ns);
            handed.push(Handed { seq, attempt, stored_ns, message: entry.message.clone() });
        }
        handed
    }

    /// Lets the lease of delivery `attempt`, or the delay before the next, run until `until`. A late word of
    /// an earlier delivery changes nothing.
    pub(super) fn hold(&mut self, seq: u64, attempt: u64, until: Duration) {
        let Some(entry) = self.entries.get_mut(&seq) else { return };
        if let TaskState::Until(before) = entry.state
            && entry.attempt == attempt
        {
            self.news.ends_earlier |= self.timers.first().is_none_or(|(first, _)| until < *first);
            self.timers.remove(&(before, seq));
            self.timers.insert((until, seq));
            entry.state = TaskState::Until(until);
        }
    }

    /// Forgets a task, whichever worker has it: a late acknowledgement of an earlier delivery
    /// counts, as on the server.
    pub(super) fn remove(&mut self, seq: u64) {
        if let Some(entry) = self.entries.remove(&seq) {
            self.subjects.remove(&entry.message.subject);
            if let TaskState::Until(at) = entry.state {
                self.timers.remove(&(at, seq));
            }
        }
    }

    /// Loses all deliveries in flight: their tasks are delivered again, at once and as if for the
    /// first time.
    pub(super) fn forget_deliveries(&mut self) {
        self.timers.clear();
        for (seq, entry) in &mut self.entries {
            if matches!(entry.state, TaskState::Until(_)) {
                entry.state = TaskState::Ready;
                entry.attempt = 0;
                self.ready.entry(entry.pool.clone()).or_default().again.push_back(*seq);
            }
        }
    }

    /// Tasks that are queued or in flight.
    pub(super) fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn message(&self, seq: u64) -> Option<&Message> {
        self.entries.get(&seq).map(|entry| &entry.message)
    }

    pub(super) fn purge(&mut self, filter: &str) -> u64 {
        let gone = self.subjects.iter().filter(|(subject, _)| filter::matches(filter, subject));
        let gone: Vec<u64> = gone.map(|(_, seq)| *seq).collect();
        for seq in &gone {
            self.remove(*seq);
        }
        gone.len() as u64
    }
}
