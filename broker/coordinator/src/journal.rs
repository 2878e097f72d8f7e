//! Snapshots of the state: the content goes to the object store, its place to a key by compare-and-set. A
//! coordinator that starts loads the newest and folds the rest of the log.

use millrace_queue::port::{Expect, Written};
use millrace_queue::{Broker, BrokerError};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::envelope::{decode, encode};
use millrace_schemas::subjects::{COORDINATOR_BUCKET, SNAPSHOT_KEY};
use serde::{Deserialize, Serialize};

use crate::state::State;

/// Where the newest snapshot is; the value of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pointer {
    seq: u64,
    path: String,
    sha256: Sha,
}

/// The state of the newest snapshot, or an empty one. A snapshot that is gone or damaged costs time, not
/// truth: the whole log is folded instead.
///
/// # Errors
/// The queue or the object store cannot be reached.
pub async fn restore(broker: &Broker) -> Result<State, BrokerError> {
    let Some(value) = broker.queue().get(COORDINATOR_BUCKET, SNAPSHOT_KEY).await? else {
        return Ok(State::default());
    };
    let Ok(pointer) = serde_json::from_slice::<Pointer>(&value.value) else {
        tracing::warn!("the snapshot's key cannot be read; folding the whole log");
        return Ok(State::default());
    };
    let content = broker.objects().get(&pointer.path).await?;
    let state = content
        .filter(|content| Sha::of(content) == pointer.sha256)
        .and_then(|content| decode::<State>("snapshot", &content).ok());
    match state {
        Some(state) => of_this_log(broker, state).await,
        None => {
            tracing::warn!(path = pointer.path, "the snapshot is gone or damaged; folding the whole log");
            Ok(State::default())
        }
    }
}

/// The state, if the log still holds what it was folded from. Where the log lost its newest part with a machine the
/// snapshot knows more than the log does: it is left, for the state is a fold over the log and nothing else.
async fn of_this_log(broker: &Broker, state: State) -> Result<State, BrokerError> {
    if holds(broker, &state).await? {
        return Ok(state);
    }
    tracing::error!(
        snapshot = state.seq,
        "the log lost what the snapshot was made from; folding what is left"
    );
    Ok(State::default())
}

/// Whether the last entry that `state` folded is in the log as it was.
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
    let entry = broker.queue().read_log(state.seq).await?.next(1).await?;
    let stored_ns = entry.first().map_or(0, |entry| entry.stored_ns);
    // Snapshots of older programs do not say when.
    Ok(state.stored_ns == 0 || stored_ns == state.stored_ns)
}

/// Writes a snapshot, unless a newer one stands, and removes the one that it replaces.
///
/// # Errors
/// The queue or the object store cannot be reached. The older snapshot stands.
pub async fn save(broker: &Broker, seq: u64, content: bytes::Bytes) -> Result<(), BrokerError> {
    let sha256 = Sha::of(&content);
    let pointer = Pointer { seq, path: paths::snapshot(seq, &sha256), sha256 };
    let standing = broker.queue().get(COORDINATOR_BUCKET, SNAPSHOT_KEY).await?;
    let old = standing.as_ref().and_then(|value| serde_json::from_slice::<Pointer>(&value.value).ok());
    if old.as_ref().is_some_and(|old| old.seq == seq && old.sha256 == sha256) {
        return Ok(());
    }
    if let Some(old) = &old
        && old.seq > seq
        // One beyond the end of the log is of a part that was lost, and no newer.
        && old.seq <= broker.queue().log_end().await?
    {
        tracing::info!(seq, standing = old.seq, "a newer snapshot stands; this one is not written");
        return Ok(());
    }
    broker.objects().put(&pointer.path, content).await?;
    let expect = standing.map_or(Expect::Absent, |value| Expect::Revision(value.revision));
    let value = serde_json::to_vec(&pointer).expect("a pointer holds only what JSON can express");
    let written = broker.queue().set(COORDINATOR_BUCKET, SNAPSHOT_KEY, value.into(), expect).await?;
    let leftover = match written {
        Written::At(_) => old.map(|old| old.path),
        // Another coordinator was faster.
        Written::Conflict => Some(pointer.path.clone()),
    };
    if let Some(path) = leftover.filter(|path| written == Written::Conflict || *path != pointer.path) {
        broker.objects().delete(&path).await?;
    }
    Ok(())
}

/// The bytes of a snapshot.
#[must_use]
pub fn encode_state(state: &State) -> bytes::Bytes {
    encode(state)
}
