//! Reads the committed versions of a run for the recount.

use bytes::Bytes;
use futures::StreamExt;
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::{PolicyVersion, RunId};

use super::{Audit, Claim, Recount, StoredVersion};

/// Versions read at once.
const VERSIONS_IN_FLIGHT: usize = 16;

/// Why a recount could not be completed.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The object store failed. This is no finding about the run.
    #[error("failed to recount: {0}")]
    Objects(#[from] ObjectError),
}

/// Recounts a run from the object store and compares it with `claim`. If the run is finished
/// (`at_its_end`), no version may exist after the last. Otherwise the next may be committed
/// already: the outcome of its commit may not be in the log yet.
///
/// # Errors
/// The object store cannot be reached. Missing or damaged objects are findings, not errors.
pub async fn audit(objects: &Objects, claim: Claim, at_its_end: bool) -> Result<Audit, AuditError> {
    let (run, last) = (claim.run.clone(), claim.version);
    let mut recount = Recount::new(claim);
    let reads = (0..=last.0).map(|v| expect_version(objects, &run, PolicyVersion(v)));
    let mut reads = futures::stream::iter(reads).buffered(VERSIONS_IN_FLIGHT);
    let mut version = PolicyVersion(0);
    while let Some(stored) = reads.next().await {
        recount.count(version, stored?);
        version = version.next();
    }
    if at_its_end && objects.get(&paths::manifest(&run, version)).await?.is_some() {
        recount.beyond(version);
    }
    Ok(recount.finish())
}

/// A version that must be committed.
async fn expect_version(
    objects: &Objects,
    run: &RunId,
    version: PolicyVersion,
) -> Result<Result<StoredVersion, String>, ObjectError> {
    let stored = read_version(objects, run, version).await?;
    Ok(stored.unwrap_or_else(|| Err("it has no manifest".into())))
}

/// A committed version; `None` if it is not committed.
///
/// # Errors
/// The inner error is a damaged object; the outer one is a failure of the store.
pub async fn read_version(
    objects: &Objects,
    run: &RunId,
    version: PolicyVersion,
) -> Result<Option<Result<StoredVersion, String>>, ObjectError> {
    match objects.get(&paths::manifest(run, version)).await? {
        Some(bytes) => read_whole(objects, run, &bytes).await.map(Some),
        None => Ok(None),
    }
}

/// Reads the batch of a manifest.
async fn read_whole(
    objects: &Objects,
    run: &RunId,
    bytes: &[u8],
) -> Result<Result<StoredVersion, String>, ObjectError> {
    let manifest: Manifest = match serde_json::from_slice(bytes) {
        Ok(manifest) => manifest,
        Err(e) => return Ok(Err(format!("its manifest cannot be read: {e}"))),
    };
    let batch = match &manifest.batch {
        None => None,
        Some(blob) => match objects.get_blob(run, blob).await {
            Ok(content) => Some(content),
            Err(ObjectError::NotFound { .. }) => return Ok(Err("its batch is missing".into())),
            Err(e @ ObjectError::Corrupt { .. }) => return Ok(Err(format!("its batch is damaged: {e}"))),
            Err(e) => return Err(e),
        },
    };
    Ok(assemble(bytes, manifest, batch))
}

fn assemble(bytes: &[u8], manifest: Manifest, batch: Option<Bytes>) -> Result<StoredVersion, String> {
    let batch = batch.map(|content| decode("batch", &content)).transpose().map_err(|e| e.to_string())?;
    Ok(StoredVersion { sha256: Sha::of(bytes), manifest, batch })
}
