//! Loads every snapshot that is named, at the moment at which it is named.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_coordinator::fold::state::State;
use millrace_coordinator::shell::journal;
use millrace_queue::Broker;
use millrace_schemas::blob::Sha;
use millrace_schemas::subjects::{COORDINATOR_BUCKET, SNAPSHOT_KEY};

/// Pause before a broken watch of the key is restarted.
const REWATCH: Duration = Duration::from_millis(200);

/// A snapshot that the key named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotSeen {
    /// The position in the log after which it was made, according to the key.
    pub seq: u64,
    /// What it holds, see [`digest`]; `None` where it cannot be loaded.
    pub digest: Option<Sha>,
    /// Counts the times that the queue lost its newest part before.
    pub epoch: u64,
}

/// Identifies a state, whenever the server stored its last entry.
#[must_use]
pub fn digest(state: &State) -> Sha {
    Sha::of(&journal::encode_state(&State { stored_ns: 0, ..state.clone() }))
}

/// Notes every snapshot while the key is watched. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SnapshotWatch {
    seen: Arc<Mutex<Vec<SnapshotSeen>>>,
}

impl SnapshotWatch {
    /// Consumes the key, produces notes. Waits for the next value; restarts a watch that breaks.
    /// Never ends.
    pub async fn run(self, broker: Broker) {
        for epoch in 0.. {
            if let Err(error) = self.follow(&broker, epoch).await {
                tracing::debug!(%error, "watch of the snapshot's key broke");
            }
            tokio::time::sleep(REWATCH).await;
        }
    }

    async fn follow(&self, broker: &Broker, epoch: u64) -> anyhow::Result<()> {
        let mut watch = broker.queue().watch(COORDINATOR_BUCKET).await?;
        loop {
            let value = watch.next().await?;
            if value.key != SNAPSHOT_KEY {
                continue;
            }
            let Some(seq) = named(&value.value) else { continue };
            let loaded = journal::restore(broker).await?;
            let now = broker.queue().get(COORDINATOR_BUCKET, SNAPSHOT_KEY).await?;
            if now.is_none_or(|now| now.revision != value.revision) {
                // The next one took its place meanwhile.
                continue;
            }
            let digest = (loaded.seq == seq).then(|| digest(&loaded));
            let seen = SnapshotSeen { seq, digest, epoch };
            self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        }
    }

    /// What was seen so far.
    #[must_use]
    pub fn seen(&self) -> Vec<SnapshotSeen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The position that a value of the key names.
fn named(value: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(value).ok()?.get("seq")?.as_u64()
}
