//! What a replica that is behind still shows of the keys.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millrace_queue::port::KeyValue;
use tokio::time::Instant;

/// By how much a replica may be behind.
const LAG: Duration = Duration::from_secs(3);

/// The value that each key had before its newest, and when the newest took its place. `None` for no value.
#[derive(Default)]
pub(super) struct Replicas(Mutex<BTreeMap<String, (Option<KeyValue>, Instant)>>);

impl Replicas {
    /// A key is written that held `before`.
    pub(super) fn written(&self, key: &str, before: Option<KeyValue>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.to_owned(), (before, Instant::now()));
    }

    /// The value that a replica behind shows of a key, if it is another than the newest.
    pub(super) fn stale(&self, key: &str) -> Option<Option<KeyValue>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(key).filter(|(_, since)| since.elapsed() < LAG).map(|(before, _)| before.clone())
    }
}
