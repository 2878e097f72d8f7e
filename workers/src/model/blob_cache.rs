//! Blobs of the object store, proved by their hash. What this process read or wrote a moment ago
//! stays in memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::{BlobRef, RunId};

use recent::Recent;

mod recent;

/// Tries to fetch a blob or a version before its task returns to the queue, and the pause between
/// two.
pub(super) const TRIES: (u32, Duration) = (5, Duration::from_millis(500));

/// Reads and writes blobs. Clones share the cached content.
#[derive(Debug, Clone)]
pub struct BlobCache {
    objects: Objects,
    recent: Arc<Recent>,
}

impl BlobCache {
    /// An empty cache in front of `objects`.
    #[must_use]
    pub fn new(objects: Objects) -> Self {
        Self { objects, recent: Arc::default() }
    }

    /// The object store behind it.
    #[must_use]
    pub const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// A blob, from memory or from the store. Transient errors of the store are retried a few
    /// times.
    ///
    /// # Errors
    /// The blob does not exist, or the store cannot be reached.
    pub async fn fetch(&self, run: &RunId, blob: BlobRef) -> Result<Bytes, ObjectError> {
        for _ in 1..TRIES.0 {
            match self.try_fetch(run, blob).await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(%run, sha256 = %blob.sha256, %error, "blob not fetched yet");
                    tokio::time::sleep(TRIES.1).await;
                }
                answer => return answer,
            }
        }
        self.try_fetch(run, blob).await
    }

    /// As [`Self::fetch`], with one try.
    pub(super) async fn try_fetch(&self, run: &RunId, blob: BlobRef) -> Result<Bytes, ObjectError> {
        if let Some(content) = self.recent.get(&blob.sha256) {
            return Ok(content);
        }
        let content = self.objects.get_blob(run, &blob).await?;
        self.recent.insert(blob.sha256, content.clone());
        Ok(content)
    }

    /// Writes a blob to the store and keeps it in memory.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn store(&self, run: &RunId, content: Bytes) -> Result<BlobRef, ObjectError> {
        let blob = self.objects.put_blob(run, content.clone()).await?;
        self.recent.insert(blob.sha256, content);
        Ok(blob)
    }
}
