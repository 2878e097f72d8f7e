//! What is kept: the log, the dead letters and the keys.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::port::{Appended, Expect, KeyValue, LogEntry, Message, Written};

/// Entries in order; for a time, the first with an id wins.
#[derive(Debug, Default, Clone)]
pub(super) struct Records {
    end: u64,
    /// Entries, and when each was stored, in nanoseconds.
    entries: BTreeMap<u64, (u64, Message)>,
    /// When the newest entry was stored, lost or not. No two entries have the same time, although a
    /// test's clock may not move.
    newest_ns: u64,
    /// Bytes of the entries.
    bytes: u64,
    ids: BTreeMap<String, (Duration, u64)>,
}

impl Records {
    pub(super) fn append(
        &mut self,
        message: Message,
        id: Option<&str>,
        now: Duration,
        window: Duration,
    ) -> Appended {
        let known = id.and_then(|id| self.ids.get(id));
        if let Some(&(at, seq)) = known
            && now < at + window
        {
            return Appended { seq, first: false };
        }
        self.end += 1;
        if let Some(id) = id {
            self.ids.insert(id.to_owned(), (now, self.end));
        }
        self.newest_ns = (now.as_nanos() as u64).max(self.newest_ns + 1);
        self.bytes += size(&message);
        self.entries.insert(self.end, (self.newest_ns, message));
        Appended { seq: self.end, first: true }
    }

    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    /// Position of the oldest entry that is left, or of the next.
    pub(super) fn first(&self) -> u64 {
        self.entries.first_key_value().map_or(self.end + 1, |(seq, _)| *seq)
    }

    /// Bytes that the entries take.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Removes all entries before `before`.
    pub(super) fn trim(&mut self, before: u64) {
        let stay = self.entries.split_off(&before.min(self.end + 1));
        let gone = std::mem::replace(&mut self.entries, stay);
        self.leave(&gone);
    }

    fn leave(&mut self, gone: &BTreeMap<u64, (u64, Message)>) {
        self.bytes -= gone.values().map(|(_, message)| size(message)).sum::<u64>();
    }

    pub(super) fn read(&self, from: u64, max: usize) -> Vec<LogEntry> {
        let entries = self.entries.range(from..).take(max);
        let entry = |(seq, (stored_ns, message)): (&u64, &(u64, Message))| LogEntry {
            seq: *seq,
            stored_ns: *stored_ns,
            message: message.clone(),
        };
        entries.map(entry).collect()
    }

    pub(super) fn get(&self, seq: u64) -> Option<LogEntry> {
        let (stored_ns, message) = self.entries.get(&seq)?;
        Some(LogEntry { seq, stored_ns: *stored_ns, message: message.clone() })
    }

    pub(super) fn remove(&mut self, seq: u64) {
        let gone = self.entries.remove_entry(&seq);
        self.leave(&gone.into_iter().collect());
    }

    /// When the entry at `seq` was stored, in nanoseconds.
    pub(super) fn stored_ns(&self, seq: u64) -> Option<u64> {
        self.entries.get(&seq).map(|(stored_ns, _)| *stored_ns)
    }

    /// Loses what follows `end`; its positions are given out again.
    pub(super) fn truncate(&mut self, end: u64) {
        self.end = self.end.min(end);
        let gone = self.entries.split_off(&(end + 1));
        self.leave(&gone);
        self.ids.retain(|_, (_, seq)| *seq <= end);
    }
}

/// Bytes of a message.
fn size(message: &Message) -> u64 {
    (message.subject.len() + message.payload.len()) as u64
}

/// Keys of one bucket.
#[derive(Debug, Default, Clone)]
pub(super) struct Bucket {
    revision: u64,
    values: BTreeMap<String, KeyValue>,
}

impl Bucket {
    pub(super) fn get(&self, key: &str) -> Option<KeyValue> {
        self.values.get(key).cloned()
    }

    pub(super) fn set(&mut self, key: &str, value: Bytes, expect: Expect) -> Written {
        let found = self.values.get(key).map(|value| value.revision);
        let fits = match expect {
            Expect::Any => true,
            Expect::Absent => found.is_none(),
            Expect::Revision(revision) => found == Some(revision),
        };
        if !fits {
            return Written::Conflict;
        }
        self.revision += 1;
        let value = KeyValue { key: key.to_owned(), value, revision: self.revision };
        self.values.insert(key.to_owned(), value);
        Written::At(self.revision)
    }

    /// The oldest value that was written after `revision`.
    pub(super) fn after(&self, revision: u64) -> Option<KeyValue> {
        self.values.values().filter(|v| v.revision > revision).min_by_key(|v| v.revision).cloned()
    }
}
