//! Files of versions, by their references: from this process's memory, from the machine's folder, or from the
//! object store, where they are whole or what changed since an anchor.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use millrace_objects::{delta, from_anchor};
use millrace_policy::is_for_training;
use millrace_queue::ObjectError;
use millrace_schemas::blob::Sha;
use millrace_schemas::train_shard::{DeltaRef, FileRef};
use millrace_schemas::{BlobRef, RunId};

use super::blob_cache::{BlobCache, Tries};
use super::folder::Folder;

/// Reads and writes files of versions. Clones share what they keep.
#[derive(Debug, Clone)]
pub struct FileStore {
    blobs: BlobCache,
    folder: Option<Arc<Folder>>,
    /// The anchor of the latest delta, where no folder keeps it: each next delta needs it.
    anchor: Arc<Mutex<Option<(Sha, Bytes)>>>,
}

impl FileStore {
    /// In front of `blobs`, and of `folder` if the machine has one.
    #[must_use]
    pub(crate) fn new(blobs: BlobCache, folder: Option<Arc<Folder>>) -> Self {
        Self { blobs, folder, anchor: Arc::default() }
    }

    pub(super) const fn blobs(&self) -> &BlobCache {
        &self.blobs
    }

    /// Reads a file and proves it by its hash. Transient errors of the store are retried a few times.
    ///
    /// # Errors
    /// A blob of it does not exist or is another one, or the store cannot be reached.
    pub async fn fetch(&self, run: &RunId, file: &FileRef) -> Result<Bytes, ObjectError> {
        let mut tries = Tries::default();
        loop {
            match self.try_fetch(run, file).await {
                Err(error) if error.is_transient() && tries.are_left(run, &file.name, &error).await => {}
                answer => return answer,
            }
        }
    }

    /// As [`Self::fetch`], with one try.
    pub(super) async fn try_fetch(&self, run: &RunId, file: &FileRef) -> Result<Bytes, ObjectError> {
        let Some(DeltaRef { anchor, changes }) = file.delta else {
            return self.whole(run, &file.name, file.blob).await;
        };
        let folder = self.folder_for_made(&file.name, &file.blob, &anchor);
        let made = async {
            folder.inspect(|folder| folder.used(&anchor));
            let (anchor, changes) =
                futures::try_join!(self.anchor(run, &file.name, anchor), self.blobs.try_fetch(run, changes))?;
            from_anchor(run, file.blob, anchor, changes).await
        };
        self.get_or(folder, &file.blob, made).await
    }

    /// Stores a file: as what changed since the anchor of `base`, if there is one and that is worth it, else whole.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn store(
        &self,
        run: &RunId,
        name: &str,
        content: Bytes,
        base: Option<&FileRef>,
    ) -> Result<FileRef, ObjectError> {
        if let Some(file) = self.store_delta(run, name, &content, base).await? {
            return Ok(file);
        }
        let blob = self.blobs.store(run, content.clone()).await?;
        if let Some(folder) = self.folder(name, &blob) {
            folder.keep(&blob, content).await;
        }
        Ok(FileRef::whole(name, blob))
    }

    async fn store_delta(
        &self,
        run: &RunId,
        name: &str,
        content: &Bytes,
        base: Option<&FileRef>,
    ) -> Result<Option<FileRef>, ObjectError> {
        let Some(anchor) = base.map(FileRef::anchor).filter(|anchor| anchor.bytes == content.len() as u64)
        else {
            return Ok(None);
        };
        let from = match self.anchor(run, name, anchor).await {
            Ok(from) => from,
            // The version becomes an anchor itself.
            Err(error) => {
                tracing::warn!(%run, name, %error, "weights are stored whole: their anchor cannot be read");
                return Ok(None);
            }
        };
        let target = content.clone();
        let encoded = tokio::task::spawn_blocking(move || {
            delta::encode(&from, &target).map(|changes| (changes, BlobRef::of(&target)))
        });
        let Some((changes, blob)) = encoded.await.expect("it does not panic") else { return Ok(None) };
        let changes = self.blobs.store(run, changes.into()).await?;
        self.blobs.keep(blob.sha256, content.clone());
        if let Some(folder) = self.folder_for_made(name, &blob, &anchor) {
            folder.used(&anchor);
            folder.keep(&blob, content.clone()).await;
        }
        Ok(Some(FileRef { name: name.to_owned(), blob, delta: Some(DeltaRef { anchor, changes }) }))
    }

    /// An anchor, which is kept for the next delta.
    async fn anchor(&self, run: &RunId, name: &str, blob: BlobRef) -> Result<Bytes, ObjectError> {
        if let Some((sha, content)) = &*self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
            && *sha == blob.sha256
        {
            return Ok(content.clone());
        }
        let content = self.whole(run, name, blob).await?;
        if self.folder(name, &blob).is_none() {
            let pinned = Some((blob.sha256, content.clone()));
            *self.anchor.lock().unwrap_or_else(PoisonError::into_inner) = pinned;
        }
        Ok(content)
    }

    async fn whole(&self, run: &RunId, name: &str, blob: BlobRef) -> Result<Bytes, ObjectError> {
        let fetch = self.blobs.objects().get_blob(run, &blob);
        self.get_or(self.folder(name, &blob), &blob, fetch).await
    }

    /// A blob from memory, from `folder` if there is one, or what `fetch` gives.
    async fn get_or(
        &self,
        folder: Option<&Folder>,
        blob: &BlobRef,
        fetch: impl Future<Output = Result<Bytes, ObjectError>> + Send,
    ) -> Result<Bytes, ObjectError> {
        match folder {
            Some(folder) => self.blobs.get_or(blob.sha256, folder.get_or(blob, fetch)).await,
            None => self.blobs.get_or(blob.sha256, fetch).await,
        }
    }

    /// The machine's folder, if it keeps a file that is made of an anchor and changes: where it would drive the anchor
    /// out, each next version would fetch that once more.
    fn folder_for_made(&self, name: &str, blob: &BlobRef, anchor: &BlobRef) -> Option<&Folder> {
        self.folder(name, blob).filter(|folder| folder.has_room_for(blob.bytes.saturating_add(anchor.bytes)))
    }

    /// The machine's folder, if it keeps such a file.
    fn folder(&self, name: &str, blob: &BlobRef) -> Option<&Folder> {
        self.folder.as_deref().filter(|folder| !is_for_training(name) && folder.keeps(blob))
    }
}

#[cfg(test)]
mod tests;
