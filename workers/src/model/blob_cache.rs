//! Blobs of the object store, proved by their hash. What this process read or wrote a moment ago
//! stays in memory.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::Sha;
use millrace_schemas::{BlobRef, RunId};

use recent::Recent;

mod recent;

/// Tries to fetch a blob or a version before its task returns to the queue.
const MAX_TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(500);

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
        let mut tries = Tries::default();
        loop {
            match self.try_fetch(run, blob).await {
                Err(error) if error.is_transient() && tries.are_left(run, blob.sha256, &error).await => {}
                answer => return answer,
            }
        }
    }

    /// Keeps content in memory whose hash is proved.
    pub(super) fn keep(&self, sha: Sha, content: Bytes) {
        self.recent.insert(sha, content);
    }

    /// As [`Self::fetch`], with one try.
    pub(super) async fn try_fetch(&self, run: &RunId, blob: BlobRef) -> Result<Bytes, ObjectError> {
        self.get_or(blob.sha256, self.objects.get_blob(run, &blob)).await
    }

    /// The content of this hash from memory, or what `fetch` gives, which has proved it.
    pub(super) async fn get_or(
        &self,
        sha: Sha,
        fetch: impl Future<Output = Result<Bytes, ObjectError>> + Send,
    ) -> Result<Bytes, ObjectError> {
        if let Some(content) = self.recent.get(&sha) {
            return Ok(content);
        }
        let content = fetch.await?;
        self.keep(sha, content.clone());
        Ok(content)
    }

    /// Writes a blob to the store and keeps it in memory.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn store(&self, run: &RunId, content: Bytes) -> Result<BlobRef, ObjectError> {
        let blob = self.objects.put_blob(run, content.clone()).await?;
        self.keep(blob.sha256, content);
        Ok(blob)
    }
}

/// The tries to fetch something, while the store's errors are transient.
#[derive(Debug, Default)]
pub(super) struct Tries(u32);

impl Tries {
    /// Whether to try again after `error` has ended a try; where there is another one, it waits before.
    pub(super) async fn are_left(&mut self, run: &RunId, what: impl Display, error: impl Display) -> bool {
        self.0 += 1;
        if self.0 >= MAX_TRIES {
            return false;
        }
        tracing::warn!(%run, %what, %error, "not fetched yet");
        tokio::time::sleep(BETWEEN_TRIES).await;
        true
    }
}
