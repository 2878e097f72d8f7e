//! The object store as the trainer's thread sees it.

use std::fmt;

use bytes::Bytes;
use millrace_policy::{Past, PolicyError};
use millrace_queue::Broker;
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{BlobRef, PolicyVersion, RunId};
use tokio::runtime::Handle;

use crate::model::versions::{Files, VersionError, VersionStore};
use crate::runtime::Failure;

/// The committed versions and batches of a run. Calls block, so they come from a thread outside the
/// runtime.
pub(super) struct StoredPast {
    pub(super) run: RunId,
    pub(super) versions: VersionStore,
    /// Reads batches' turns from the log; `None` where all batches contain them.
    pub(super) broker: Option<Broker>,
    pub(super) runtime: Handle,
}

impl fmt::Debug for StoredPast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredPast").field("run", &self.run).finish_non_exhaustive()
    }
}

impl Past for StoredPast {
    fn manifest(&self, version: PolicyVersion, sha: Sha) -> Result<Manifest, PolicyError> {
        let fetched = self.versions.fetch(&self.run, version, sha, Files::Manifest);
        Ok(self.runtime.block_on(fetched).map_err(lacks)?.manifest)
    }

    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError> {
        let fetched = self.versions.blobs().fetch(&self.run, *blob);
        self.runtime.block_on(fetched).map_err(|error| lacks(error.into()))
    }

    fn batch(&self, blob: &BlobRef) -> Result<Batch, PolicyError> {
        let mut batch: Batch = decode("batch", &self.blob(blob)?)
            .map_err(|error| PolicyError::Impossible(format!("failed to read a batch: {error}")))?;
        if let Some(broker) = &self.broker {
            let resolved = self.runtime.block_on(broker.resolve_batch(&mut batch));
            resolved.map_err(|error| PolicyError::Temporary(error.to_string()))?;
        }
        Ok(batch)
    }
}

fn lacks(error: VersionError) -> PolicyError {
    match error.into() {
        Failure::Impossible(reason) => PolicyError::Impossible(reason),
        Failure::Retry(_, reason) => PolicyError::Temporary(reason),
    }
}
