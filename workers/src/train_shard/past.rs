//! The object store as the trainer's thread sees it.

use bytes::Bytes;
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::{BlobRef, PolicyVersion, RunId};
use tokio::runtime::Handle;

use crate::executor::Verdict;
use crate::policy::{Past, PolicyError};
use crate::weights::{Files, Weights, WeightsError};

/// What was committed of a run. Calls block, on a thread that is none of the runtime's.
#[derive(Debug)]
pub(super) struct StoredPast {
    pub(super) run: RunId,
    pub(super) weights: Weights,
    pub(super) runtime: Handle,
}

impl Past for StoredPast {
    fn manifest(&self, version: PolicyVersion, sha: Sha) -> Result<Manifest, PolicyError> {
        let fetched = self.weights.fetch(&self.run, version, sha, Files::Manifest);
        Ok(self.runtime.block_on(fetched).map_err(|error| lacks(&error))?.manifest)
    }

    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError> {
        let fetched = self.weights.fetch_blob(&self.run, *blob);
        self.runtime.block_on(fetched).map_err(|error| lacks(&error.into()))
    }
}

/// What is not there stays away; anything else may be better another time.
fn lacks(error: &WeightsError) -> PolicyError {
    match error.verdict() {
        Verdict::Poison(reason) => PolicyError::Impossible(reason),
        _ => PolicyError::Temporary(error.to_string()),
    }
}
