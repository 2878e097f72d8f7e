//! Types on top of the port: tasks, events, policies and notices instead of bytes. A payload over 256 KiB
//! goes to the object store and its reference travels (the claim check).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use millrace_schemas::limits::MAX_INLINE_BYTES;
use millrace_schemas::subjects::CLAIM_HEADER;
use millrace_schemas::{BlobRef, RunId};

use crate::port::{Message, Queue, QueueError};
use millrace_objects::{ObjectError, Objects};

pub use dead::DeadLetter;
pub use log::{Log, Logged};
pub use members::SignsOfLife;
pub use policies::Policies;
pub use segments::{Chain, TrimRule};
pub use tasks::OpenError;
use trajectories::{Contexts, TrajectoryCache};

mod tasks;
mod log;
mod segments;
mod reach;
mod watched;
mod policies;
mod members;
mod dead;
mod trajectories;

/// The queue and the object store, with typed messages. Clones share both.
#[derive(Clone)]
pub struct Broker {
    queue: Arc<dyn Queue>,
    objects: Objects,
    trajectories: Arc<TrajectoryCache>,
    contexts: Arc<Contexts>,
    /// Whether this process may ask for the log's range, as far as is known.
    asks_range: Arc<AtomicBool>,
    /// Where the log began after the last trim of this process.
    trimmed_to: Arc<AtomicU64>,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").finish_non_exhaustive()
    }
}

/// An error of the broker.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BrokerError {
    /// The queue failed.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The object store failed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Entries are neither in the log nor in a segment of it.
    #[error(
        "failed to read the log: the entries from seq={from} to seq={to} are neither in it nor in a segment; restore the \
         stream or the segments from a backup"
    )]
    Gone {
        /// The first of them.
        from: u64,
        /// The last of them.
        to: u64,
    },
    /// Stored content cannot be read, or the request makes no sense.
    #[error("failed to {action}: {reason}")]
    Invalid {
        /// The operation that failed.
        action: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl BrokerError {
    /// Whether a retry may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Queue(e) => e.is_transient(),
            Self::Object(e) => e.is_transient(),
            Self::Gone { .. } | Self::Invalid { .. } => false,
        }
    }
}

impl Broker {
    /// Puts types on `queue`, with `objects` for large payloads.
    #[must_use]
    pub fn new(queue: Arc<dyn Queue>, objects: Objects) -> Self {
        let asks_range = Arc::new(AtomicBool::new(true));
        let (trajectories, contexts) = (Arc::default(), Arc::default());
        Self { queue, objects, trajectories, contexts, asks_range, trimmed_to: Arc::default() }
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// The object store.
    #[must_use]
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Moves a large payload to the object store; a small one travels as it is.
    async fn check_in(&self, run: &RunId, message: Message) -> Result<Message, ObjectError> {
        if message.payload.len() > MAX_INLINE_BYTES { self.claim(run, message).await } else { Ok(message) }
    }

    /// Moves a payload to the object store.
    async fn claim(&self, run: &RunId, mut message: Message) -> Result<Message, ObjectError> {
        let blob = self.objects.put_blob(run, std::mem::take(&mut message.payload)).await?;
        message.headers.push((CLAIM_HEADER, format!("{}/{}", blob.sha256, blob.bytes)));
        Ok(message)
    }
}

/// Reads a claim, `<sha256>/<bytes>`.
fn parse_claim(claim: &str) -> Result<BlobRef, String> {
    let wrong =
        || format!("claim value={:?} is not <sha256>/<bytes>", claim.chars().take(100).collect::<String>());
    let (sha256, bytes) = claim.split_once('/').ok_or_else(wrong)?;
    Ok(BlobRef { sha256: sha256.parse().map_err(|_| wrong())?, bytes: bytes.parse().map_err(|_| wrong())? })
}
