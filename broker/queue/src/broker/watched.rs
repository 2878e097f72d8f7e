//! The keys of a bucket, watched and read.

use std::fmt::Display;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::BrokerError;
use crate::port::{KeyValue, KeyWatcher};

/// Watches a bucket whose keys are names `K` and whose values are `V`, as JSON.
pub struct Watched<K, V> {
    watcher: Box<dyn KeyWatcher>,
    of: PhantomData<fn() -> (K, V)>,
}

impl<K: FromStr<Err: Display>, V: DeserializeOwned> Watched<K, V> {
    /// Reads the values of this watcher.
    #[must_use]
    pub fn new(watcher: Box<dyn KeyWatcher>) -> Self {
        Self { watcher, of: PhantomData }
    }

    /// Whether all values that were stored are read; `false` also after a lost connection, until
    /// they are read again.
    #[must_use]
    pub fn current(&self) -> watch::Receiver<bool> {
        self.watcher.current()
    }

    /// Waits for the next value: first all stored values, however old, then every change. Dropping
    /// the future loses nothing.
    ///
    /// # Errors
    /// The queue cannot be reached.
    pub async fn next(&mut self) -> Result<(K, V), BrokerError> {
        loop {
            let value = self.watcher.next().await?;
            match read(&value) {
                Ok(read) => return Ok(read),
                // Somebody wrote it by hand. The next write mends it.
                Err(reason) => tracing::warn!(key = value.key, reason, "key cannot be read"),
            }
        }
    }
}

/// A key and its value, as what they are.
pub(super) fn read<K: FromStr<Err: Display>, V: DeserializeOwned>(
    value: &KeyValue,
) -> Result<(K, V), String> {
    let key = value.key.parse().map_err(|e: K::Err| e.to_string())?;
    let value = serde_json::from_slice(&value.value).map_err(|e| e.to_string())?;
    Ok((key, value))
}
