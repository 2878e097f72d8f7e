//! A large object is uploaded in parts, several at once, and appears when all are there. Each part is signed
//! with its hash, so the server refuses one that was changed on the way. Parts of an upload that came to nothing
//! are removed.

use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, MultipartUpload, ObjectStore, ObjectStoreExt, PutPayload, Result};
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// Bytes up to which an object is written by one request.
pub(super) const ONE_REQUEST_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of a part, unless there would be more than [`MAX_PARTS`].
const PART_BYTES: usize = 16 * 1024 * 1024;
/// Parts that S3 takes of one object.
const MAX_PARTS: usize = 10_000;
/// Parts of one object that are written at once. All must arrive within the client's 30 s for a request: a
/// connection with less than 4.3 MB a second is too slow.
const PARTS_IN_FLIGHT: usize = 8;
/// Time to remove the parts of an upload that failed, while its caller waits. What is left, the bucket's
/// lifecycle removes.
const ABORT_PATIENCE: Duration = Duration::from_secs(5);

/// Writes `content` at `at` in parts.
pub(super) async fn in_parts(store: &dyn ObjectStore, at: &Path, content: &Bytes) -> Result<()> {
    let mut upload = Upload::begin(store, at).await?;
    let sent = upload.send(content, part_bytes(content.len())).await;
    let done = match sent {
        Ok(()) => upload.complete(store, at, content.len()).await,
        Err(e) => Err(e),
    };
    match done {
        Ok(()) => upload.completed(),
        Err(_) => upload.abort().await,
    }
    done
}

/// Begins an upload, writes one part and removes it: whether the credentials may.
pub(super) async fn begin_and_abort(store: &dyn ObjectStore, at: &Path) -> Result<()> {
    let mut upload = Upload::begin(store, at).await?;
    upload.send(&Bytes::from_static(b"part"), PART_BYTES).await?;
    let Some(mut begun) = upload.begun.take() else { return Ok(()) };
    begun.abort().await
}

fn part_bytes(length: usize) -> usize {
    PART_BYTES.max(length.div_ceil(MAX_PARTS))
}

/// An upload in parts. Dropped before its end, because nobody waits for it any more, it is aborted too.
struct Upload {
    /// `None` once it is completed or aborted.
    begun: Option<Box<dyn MultipartUpload>>,
    /// Each part is hashed and sent by a task of its own.
    parts: JoinSet<Result<()>>,
}

impl Upload {
    async fn begin(store: &dyn ObjectStore, at: &Path) -> Result<Self> {
        Ok(Self { begun: Some(store.put_multipart(at).await?), parts: JoinSet::new() })
    }

    /// Consumes: the content. Produces: its parts at the store. Waits for: a part, while as many as may are in
    /// flight. Unblocked by: the store, or the client's bound on a request. On failure: the first error; the
    /// caller aborts.
    async fn send(&mut self, content: &Bytes, part_bytes: usize) -> Result<()> {
        for start in (0..content.len()).step_by(part_bytes) {
            if self.parts.len() >= PARTS_IN_FLIGHT {
                self.next().await?;
            }
            let Some(begun) = &mut self.begun else { break };
            let part = content.slice(start..content.len().min(start + part_bytes));
            self.parts.spawn(begun.put_part(PutPayload::from_bytes(part)));
        }
        while !self.parts.is_empty() {
            self.next().await?;
        }
        Ok(())
    }

    async fn next(&mut self) -> Result<()> {
        match self.parts.join_next().await {
            Some(part) => part.map_err(|source| Error::JoinError { source })?,
            None => Ok(()),
        }
    }

    async fn complete(&mut self, store: &dyn ObjectStore, at: &Path, length: usize) -> Result<()> {
        let Some(begun) = &mut self.begun else { return Ok(()) };
        match begun.complete().await {
            Ok(_) => Ok(()),
            // Only this upload knows its id. When a repetition does not find it, an earlier request completed
            // it, and the answer got lost.
            Err(e @ Error::NotFound { .. }) => match store.head(at).await {
                Ok(meta) if meta.size == length as u64 => Ok(()),
                Ok(_) | Err(_) => Err(e),
            },
            Err(e) => Err(e),
        }
    }

    fn completed(&mut self) {
        self.begun = None;
    }

    async fn abort(&mut self) {
        if let Some(begun) = self.begun.take() {
            abort(begun, std::mem::take(&mut self.parts)).await;
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // Without a runtime, nothing can be sent.
        if let (Some(begun), Ok(runtime)) = (self.begun.take(), Handle::try_current()) {
            runtime.spawn(abort(begun, std::mem::take(&mut self.parts)));
        }
    }
}

async fn abort(mut begun: Box<dyn MultipartUpload>, mut parts: JoinSet<Result<()>>) {
    let aborted = async {
        // A part that arrives after the abort would stay.
        parts.shutdown().await;
        begun.abort().await
    };
    let _ = tokio::time::timeout(ABORT_PATIENCE, aborted).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_has_parts_that_s3_takes() {
        for length in [ONE_REQUEST_BYTES + 1, 500_000_000, 160 << 30, 1 << 40] {
            let part = part_bytes(length);
            assert!(length.div_ceil(part) <= MAX_PARTS, "length {length}");
            // Another bound of S3: 5 GiB of a part.
            assert!((5 << 20..=5 << 30).contains(&part), "length {length}");
        }
    }
}
