//! Snapshots of the state. The content is in the object store, and a key refers to the newest two
//! by compare-and-set. Each is read back before the key refers to it. A coordinator that starts
//! loads the newest readable snapshot and folds the rest of the log.

use std::time::Duration;

use bytes::Bytes;
use millrace_queue::port::{Expect, Written};
use millrace_queue::{Broker, BrokerError, Logged, ObjectError, QueueError};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::limits::REQUEST_TIMEOUT_MS;
use millrace_schemas::subjects::{COORDINATOR_BUCKET, SNAPSHOT_KEY};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::fold::state::State;

/// How long to wait for an entry that the log holds.
const PATIENCE: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS);

/// Entries of the log that are folded in one go.
const FOLD_AT_ONCE: usize = 1_024;

/// Bytes above which a snapshot is read and hashed off the async threads.
const INLINE_BYTES: usize = 256 * 1024;

/// Reference to a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Position of the last entry of the log that is folded into it.
    pub seq: u64,
    /// Path of its object.
    pub path: String,
    /// The object's hash.
    pub sha256: Sha,
}

/// The value of the snapshots' key: references to the newest two.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    seq: u64,
    path: String,
    sha256: Sha,
    /// The snapshot before, in case the newest is damaged.
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
    Ok(read_pointer(broker).await?.and_then(|(pointer, _)| pointer).map(Pointer::all).unwrap_or_default())
}

/// The key's value and revision. The value is `None` if it cannot be parsed; the next snapshot
/// overwrites it.
async fn read_pointer(broker: &Broker) -> Result<Option<(Option<Pointer>, u64)>, BrokerError> {
    let value = broker.queue().get_latest(COORDINATOR_BUCKET, SNAPSHOT_KEY).await?;
    Ok(value.map(|value| (serde_json::from_slice(&value.value).ok(), value.revision)))
}

/// The state of the newest readable snapshot, or an empty state. If a snapshot is missing or
/// damaged, the one before is loaded and more of the log is folded.
///
/// # Errors
/// The queue or the object store cannot be reached, or denies access: the snapshot may be sound.
pub async fn restore(broker: &Broker) -> Result<State, BrokerError> {
    for snapshot in snapshots(broker).await? {
        let state = match load(broker, &snapshot).await {
            Ok(state) => state,
            Err(BrokerError::Object(ObjectError::NotFound { .. } | ObjectError::Corrupt { .. })) => {
                tracing::error!(
                    path = snapshot.path,
                    "a snapshot is missing or damaged; loading the one before it"
                );
                continue;
            }
            Err(error) => return Err(error),
        };
        if holds(broker, &state).await? {
            return Ok(state);
        }
        // If the log lost its newest part, the snapshot is ahead of the log. It is not used,
        // because the state must be a fold over the log.
        tracing::error!(
            snapshot = state.seq,
            "the log lost entries that a snapshot was made from; folding the rest"
        );
    }
    Ok(State::default())
}

/// The state at the end that the log has by now: the newest snapshot, and the entries behind it.
///
/// # Errors
/// As for [`restore`], or entries behind the snapshot are gone.
pub async fn current(broker: &Broker) -> Result<State, BrokerError> {
    let (mut state, end) = (restore(broker).await?, broker.queue().log_end().await?);
    let mut log = broker.follow_log(state.seq + 1).await?;
    while state.seq < end {
        let Ok(entries) = timeout(PATIENCE, log.next(FOLD_AT_ONCE)).await else {
            let reason = format!("no entry after seq={} came, and the log ends at seq={end}", state.seq);
            return Err(QueueError::Unavailable { action: "read the log", reason }.into());
        };
        for Logged { seq, stored_ns, run, epoch, event } in entries? {
            state.stored_ns = stored_ns;
            match event {
                _ if !state.admits(seq, epoch) => {}
                Ok(event) => drop(state.advance(seq, &run, event)),
                Err(_) => state.skip(seq),
            }
        }
    }
    Ok(state)
}

/// Reads a snapshot and verifies its hash.
///
/// # Errors
/// It is missing or damaged, or the object store cannot be reached or denies access.
pub async fn load(broker: &Broker, snapshot: &Snapshot) -> Result<State, BrokerError> {
    let Snapshot { path, sha256, .. } = snapshot.clone();
    let content = broker.objects().get(&path).await?;
    let content = content.ok_or_else(|| ObjectError::NotFound { path: path.clone() })?;
    let large = content.len() > INLINE_BYTES;
    let read = move || {
        if Sha::of(&content) != sha256 {
            return Err("its hash differs".to_owned());
        }
        decode::<State>("snapshot", &content).map_err(|error| error.to_string())
    };
    let state =
        if large { tokio::task::spawn_blocking(read).await.expect("reading does not panic") } else { read() };
    state.map_err(|reason| ObjectError::Corrupt { path, reason }.into())
}

/// Whether the last entry that `state` folded is unchanged in the log, or was trimmed behind a
/// snapshot.
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
    // An emptied log delivers nothing. Folding detects whether entries are missing.
    let Ok(entries) = timeout(PATIENCE, log.next(1)).await else { return Ok(true) };
    let stored_ns =
        entries?.first().map_or(0, |entry| if entry.seq == state.seq { entry.stored_ns } else { 0 });
    // Snapshots of older versions have no such time.
    Ok(state.stored_ns == 0 || stored_ns == 0 || stored_ns == state.stored_ns)
}

/// Writes a snapshot, reads it back, and makes the key refer to it, unless the key has a newer one.
/// The snapshot that is then third is removed. Coordinators that write at the same position write
/// separate objects and do not remove one another's.
///
/// # Errors
/// The queue or the object store cannot be reached or denies access, or what was read back differs
/// from what was written. The older snapshots are kept.
pub async fn save(broker: &Broker, instance: &str, seq: u64, content: Bytes) -> Result<(), BrokerError> {
    let sha256 = Sha::of(&content);
    let (old, revision) = match read_pointer(broker).await? {
        Some((pointer, revision)) => (pointer, Some(revision)),
        None => (None, None),
    };
    if let Some(old) = &old {
        if old.seq == seq && old.sha256 == sha256 {
            return Ok(());
        }
        // A snapshot beyond the end of the log is of a lost part, and not newer.
        if old.seq > seq && old.seq <= broker.queue().log_end().await? {
            tracing::info!(seq, newest = old.seq, "a newer snapshot exists; this one is not written");
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
        // The newest is of a lost part of the log, or of the same position.
        Some(old) => (Some(old.newest()), old.previous),
        None => (None, None),
    };
    let value = serde_json::to_vec(&Pointer { seq, path: path.clone(), sha256, previous })
        .expect("a pointer holds only what JSON can express");
    let expect = revision.map_or(Expect::Absent, Expect::Revision);
    let leftover = match broker.queue().set(COORDINATOR_BUCKET, SNAPSHOT_KEY, value.into(), expect).await? {
        Written::At(_) => replaced.map(|replaced| replaced.path),
        // Another coordinator was faster; nothing refers to this object.
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
