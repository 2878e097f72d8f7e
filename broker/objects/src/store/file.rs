//! Files of versions: whole, or as changes against an anchor.

use bytes::Bytes;
use millrace_schemas::blob::paths;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, RunId};

use super::{ObjectError, Objects, hash};
use crate::delta;

impl Objects {
    /// Reads a file of a version and checks its content against its reference.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`] when one of its blobs is gone, [`ObjectError::Corrupt`] when it is not what its
    /// reference says, or the store fails.
    pub async fn get_file(&self, run: &RunId, file: &FileRef) -> Result<Bytes, ObjectError> {
        let Some(delta) = file.delta else { return self.get_blob(run, &file.blob).await };
        let (anchor, changes) =
            futures::try_join!(self.get_blob(run, &delta.anchor), self.get_blob(run, &delta.changes))?;
        from_anchor(run, file.blob, anchor, changes).await
    }

    /// Whether all blobs exist that make up a file of a version. Their content is not read.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn has_file(&self, run: &RunId, file: &FileRef) -> Result<bool, ObjectError> {
        for blob in file.stored() {
            if !self.has_blob(run, &blob).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Makes the file that `blob` names out of its anchor and its changes, off the async threads.
///
/// # Errors
/// [`ObjectError::Corrupt`] when it is another file.
pub async fn from_anchor(
    run: &RunId,
    blob: BlobRef,
    anchor: Bytes,
    changes: Bytes,
) -> Result<Bytes, ObjectError> {
    let made = tokio::task::spawn_blocking(move || delta::apply(&anchor, &changes)).await;
    let corrupt = |reason| ObjectError::Corrupt { path: paths::blob(run, &blob.sha256), reason };
    let made = Bytes::from(made.expect("it does not panic").map_err(|e| corrupt(e.to_string()))?);
    let found = hash(made.clone()).await;
    if found != blob.sha256 {
        return Err(corrupt(format!("its anchor and its changes give sha256={found}")));
    }
    Ok(made)
}
