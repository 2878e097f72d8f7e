//! The object store as the trainer's thread sees it.

use std::fmt;

use bytes::Bytes;
use millrace_policy::{Past, Place, PolicyError, Share};
use millrace_queue::Broker;
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::Algorithm;
use millrace_schemas::train_shard::{Batch, FileRef};
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

    fn file(&self, file: &FileRef) -> Result<Bytes, PolicyError> {
        let fetched = self.versions.files().fetch(&self.run, file);
        self.runtime.block_on(fetched).map_err(|error| lacks(error.into()))
    }

    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError> {
        let fetched = self.versions.blobs().fetch(&self.run, *blob);
        self.runtime.block_on(fetched).map_err(|error| lacks(error.into()))
    }

    fn batch(&self, blob: &BlobRef, algorithm: &Algorithm, place: Place) -> Result<Batch, PolicyError> {
        let mut batch: Batch = decode("batch", &self.blob(blob)?)
            .map_err(|error| PolicyError::Impossible(format!("failed to read a batch: {error}")))?;
        let resolved = resolve(self.broker.as_ref(), &mut batch, algorithm, place);
        self.runtime.block_on(resolved).map_err(PolicyError::Temporary)?;
        Ok(batch)
    }
}

/// Fetches the turns that the batch names, of the rank's own share. What is missing is missing by a
/// failure of machines.
pub(super) async fn resolve(
    broker: Option<&Broker>,
    batch: &mut Batch,
    algorithm: &Algorithm,
    place: Place,
) -> Result<(), String> {
    let run = batch.run.clone();
    let share = Share::of(batch, algorithm, place);
    match broker {
        Some(broker) => {
            broker.resolve_rollouts(&run, share.rollouts(batch)).await.map_err(|error| error.to_string())
        }
        None if share.rollouts(batch).all(|rollout| rollout.stored.is_none()) => Ok(()),
        None => Err("this worker has no way to the log, where the batch's turns are".to_owned()),
    }
}

fn lacks(error: VersionError) -> PolicyError {
    match error.into() {
        Failure::Impossible(reason) => PolicyError::Impossible(reason),
        Failure::Retry(_, reason) => PolicyError::Temporary(reason),
    }
}
