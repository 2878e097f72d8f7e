//! Snapshots of the state: the content goes to the object store, its place to a key by compare-and-set. The key names
//! the newest two, each of which was read back before it was named. A coordinator that starts loads the newest that
//! can be read and folds the rest of the log.

use std::time::Duration;

use bytes::Bytes;
use millrace_queue::port::{Expect, Written};
use millrace_queue::{Broker, BrokerError, ObjectError};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::limits::REQUEST_TIMEOUT_MS;
use millrace_schemas::subjects::{COORDINATOR_BUCKET, SNAPSHOT_KEY};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::fold::state::State;

/// For an entry of the log that is there to come.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS);

/// Bytes above which a snapshot is read and hashed off the async threads.
const INLINE_BYTES: usize = 256 * 1024;

/// Where a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Position of the last entry of the log that it has.
    pub seq: u64,
    /// Its object.
    pub path: String,
    /// The object's hash.
    pub sha256: Sha,
}

/// Where the newest snapshots are; the value of their key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    seq: u64,
    path: String,
    sha256: Sha,
    /// The one before, for when the newest is damaged.
    #[serde(default)]
    previous: Option<Snapshot>,
}

impl Pointer {
    fn newest(&self) -> Snapshot {
        let Self { seq, path, sha256, .. } = self.clone();
        Snapshot { seq, path, sha256 }
    }

    fn all(self) -> Vec<Snapshot> {
        [Some(self.newest()), self.previous].into_iter().flatten().collect()
    }
}

/// The snapshots that are kept, the newest first: at most two.
///
/// # Errors
/// The queue cannot be reached.
pub async fn snapshots(broker: &Broker) -> Result<Vec<Snapshot>, BrokerError> {
    Ok(standing(broker).await?.and_then(|(pointer, _)| pointer).map(Pointer::all).unwrap_or_default())
}

/// What the key names, and its revision. A key that cannot be read names nothing; the next snapshot overwrites it.
async fn standing(broker: &Broker) -> Result<Option<(Option<Pointer>, u64)>, BrokerError> {
    let value = broker.queue().get_latest(COORDINATOR_BUCKET, SNAPSHOT_KEY).await?;
    Ok(value.map(|value| (serde_json::from_slice(&value.value).ok(), value.revision)))
}

/// The state of the newest snapshot that can be read, or an empty one. A snapshot that is gone or damaged costs time,
/// not truth: the one before is loaded, and more of the log is folded.
///
/// # Errors
/// The queue or the object store cannot be reached, or forbids it: the snapshot may be good.
pub async fn restore(broker: &Broker) -> Result<State, BrokerError> {
    for snapshot in snapshots(broker).await? {
        let state = match load(broker, &snapshot).await {
            Ok(state) => state,
            Err(BrokerError::Object(ObjectError::NotFound { .. } | ObjectError::Corrupt { .. })) => {
                tracing::error!(
                    path = snapshot.path,
                    "a snapshot is gone or damaged; looking for one before it"
                );
                continue;
            }
            Err(error) => return Err(error),
        };
        if holds(broker, &state).await? {
            return Ok(state);
        }
        // Where the log lost its newest part with a machine the snapshot knows more than the log does: it is left,
        // for the state is a fold over the log and nothing else.
        tracing::error!(
            snapshot = state.seq,
            "the log lost what a snapshot was made from; folding what is left"
        );
    }
    Ok(State::default())
}

/// Reads a snapshot and proves that it is what its reference says.
///
/// # Errors
/// It is gone or damaged, or the object store cannot be reached, or forbids it.
pub async fn load(broker: &Broker, snapshot: &Snapshot) -> Result<State, BrokerError> {
    let Snapshot { path, sha256, .. } = snapshot.clone();
    let content = broker.objects().get(&path).await?;
    let content = content.ok_or_else(|| ObjectError::NotFound { path: path.clone() })?;
    let large = content.len() > INLINE_BYTES;
    let read = move || {
        if Sha::of(&content) != sha256 {
            return Err("its hash is another".to_owned());
        }
        decode::<State>("snapshot", &content).map_err(|error| error.to_string())
    };
    let state =
        if large { tokio::task::spawn_blocking(read).await.expect("reading does not panic") } else { read() };
    state.map_err(|reason| ObjectError::Corrupt { path, reason }.into())
}

/// Whether the last entry that `state` folded is in the log as it was, or was trimmed behind a snapshot.
///
/// # Errors
/// The queue cannot be reached.
async fn holds(broker: &Broker, state: &State) -> Result<bool, BrokerError> {
    if state.seq == 0 {
        return Ok(true);
    }
    if broker.queue().log_end().await? < state.seq {
        return Ok(false);
    }
    let mut log = broker.queue().read_log(state.seq).await?;
    // Of a log that was emptied nothing comes; whether something is missing, folding finds out.
    let Ok(entries) = timeout(PATIENCE, log.next(1)).await else { return Ok(true) };
    let stored_ns =
        entries?.first().map_or(0, |entry| if entry.seq == state.seq { entry.stored_ns } else { 0 });
    // Snapshots of older programs do not say when.
    Ok(state.stored_ns == 0 || stored_ns == 0 || stored_ns == state.stored_ns)
}

/// Writes a snapshot, reads it back, and names it, unless a newer one is named. What it replaces as the second newest
/// is removed. Several that write at one position write an object each, and nobody removes another's.
///
/// # Errors
/// The queue or the object store cannot be reached or forbids it, or what was read back is not what was written. The
/// older snapshots stand.
pub async fn save(broker: &Broker, instance: &str, seq: u64, content: Bytes) -> Result<(), BrokerError> {
    let sha256 = Sha::of(&content);
    let (old, revision) = match standing(broker).await? {
        Some((pointer, revision)) => (pointer, Some(revision)),
        None => (None, None),
    };
    if let Some(old) = &old {
        if old.seq == seq && old.sha256 == sha256 {
            return Ok(());
        }
        // One beyond the end of the log is of a part that was lost, and no newer.
        if old.seq > seq && old.seq <= broker.queue().log_end().await? {
            tracing::info!(seq, standing = old.seq, "a newer snapshot stands; this one is not written");
            return Ok(());
        }
    }
    let name = Sha::of_parts([instance.as_bytes(), sha256.to_string().as_bytes()]);
    let snapshot = Snapshot { seq, path: paths::snapshot(seq, &name), sha256 };
    broker.objects().put(&snapshot.path, content).await?;
    load(broker, &snapshot).await?;
    let Snapshot { path, .. } = snapshot.clone();
    let (replaced, previous) = match old {
        Some(old) if old.seq < seq => (old.previous.clone(), Some(old.newest())),
        // What is named is of a part of the log that was lost, or of the same place.
        Some(old) => (Some(old.newest()), old.previous),
        None => (None, None),
    };
    let value = serde_json::to_vec(&Pointer { seq, path: path.clone(), sha256, previous })
        .expect("a pointer holds only what JSON can express");
    let expect = revision.map_or(Expect::Absent, Expect::Revision);
    let leftover = match broker.queue().set(COORDINATOR_BUCKET, SNAPSHOT_KEY, value.into(), expect).await? {
        Written::At(_) => replaced.map(|replaced| replaced.path),
        // Another coordinator was faster; this object is known to nobody.
        Written::Conflict => Some(path.clone()),
    };
    match leftover {
        Some(leftover) if !is_named(broker, &leftover).await? => {
            Ok(broker.objects().delete(&leftover).await?)
        }
        Some(_) | None => Ok(()),
    }
}

async fn is_named(broker: &Broker, path: &str) -> Result<bool, BrokerError> {
    Ok(snapshots(broker).await?.iter().any(|snapshot| snapshot.path == path))
}

/// The bytes of a snapshot.
#[must_use]
pub fn encode_state(state: &State) -> Bytes {
    encode(state)
}
