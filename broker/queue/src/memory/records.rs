//! What is kept: the log, the dead letters and the keys.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;

use crate::port::{Appended, Expect, KeyValue, LogEntry, Message, Written};

/// Entries in order; for a time, the first with an id wins.
#[derive(Debug, Default)]
pub(super) struct Records {
    end: u64,
    entries: BTreeMap<u64, Message>,
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
        self.entries.insert(self.end, message);
        Appended { seq: self.end, first: true }
    }

    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn read(&self, from: u64, max: usize) -> Vec<LogEntry> {
        let entries = self.entries.range(from..).take(max);
        entries.map(|(seq, message)| LogEntry { seq: *seq, message: message.clone() }).collect()
    }

    pub(super) fn remove(&mut self, seq: u64) {
        self.entries.remove(&seq);
    }
}

/// Keys of one bucket.
#[derive(Debug, Default)]
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
