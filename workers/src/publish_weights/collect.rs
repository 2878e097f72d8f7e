//! Collection of old versions' files. A version that retention does not keep loses its files,
//! except those that a kept version names too. Manifests and batches stay for ever: they are the
//! run's record.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use futures::{StreamExt, TryStreamExt};
use millrace_queue::Objects;
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::publish_weights::{Manifest, Retention};
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, PolicyVersion, RunId};

use crate::model::versions::{VersionError, read_manifest};

/// Versions below the kept ones that each collection checks. One falls out with each commit; the
/// others make up for collections that failed or were cut short.
const LOOK_BACK: u64 = 16;
/// Manifests that are read at once.
const READS_IN_FLIGHT: usize = 16;

/// The files of a version.
type Files = Arc<Vec<BlobRef>>;

/// Collects old versions' files. Manifests never change, so each is read once.
#[derive(Debug)]
pub(super) struct Collector {
    objects: Objects,
    /// Manifests of committed versions, by version.
    files: Mutex<HashMap<RunId, BTreeMap<PolicyVersion, Files>>>,
}

impl Collector {
    pub(super) fn new(objects: Objects) -> Self {
        Self { objects, files: Mutex::default() }
    }

    /// Collects the files that `retention` gives up now that `newest` is committed; returns the
    /// versions that lost files.
    pub(super) async fn collect(
        &self,
        newest: &Manifest,
        retention: Retention,
    ) -> Result<Vec<PolicyVersion>, VersionError> {
        // A commit must not collect its own files, even if the task's retention allows it.
        let retention = Retention { newest: retention.newest.clamp(1, u64::from(u32::MAX)), ..retention };
        let run = &newest.run;
        let newest = self.newest(run, newest.version).await?;
        let kept = self.read(run, kept_versions(newest, retention)).await?;
        let reachable: BTreeSet<Sha> =
            kept.values().flat_map(|files| files.iter().map(|b| b.sha256)).collect();
        let mut collected = Vec::new();
        for (version, files) in self.read(run, given_up_versions(newest, retention)).await? {
            let mut lost = false;
            for blob in files.iter().filter(|blob| !reachable.contains(&blob.sha256)) {
                if self.objects.has_blob(run, blob).await? {
                    self.objects.delete(&paths::blob(run, &blob.sha256)).await?;
                    lost = true;
                }
            }
            if lost {
                collected.push(version);
            }
        }
        Ok(collected)
    }

    /// The newest committed version: a commit that is repeated late may find later ones.
    async fn newest(&self, run: &RunId, mut version: PolicyVersion) -> Result<PolicyVersion, VersionError> {
        while self.files(run, version.next()).await?.is_some() {
            version = version.next();
        }
        Ok(version)
    }

    async fn read(
        &self,
        run: &RunId,
        versions: Vec<PolicyVersion>,
    ) -> Result<BTreeMap<PolicyVersion, Files>, VersionError> {
        let read = futures::stream::iter(versions)
            .map(async |version| Ok::<_, VersionError>((version, self.files(run, version).await?)))
            .buffer_unordered(READS_IN_FLIGHT);
        let read: Vec<(PolicyVersion, Option<Files>)> = read.try_collect().await?;
        Ok(read.into_iter().filter_map(|(version, files)| Some((version, files?))).collect())
    }

    /// The files of a version; `None` if it is not committed.
    async fn files(&self, run: &RunId, version: PolicyVersion) -> Result<Option<Files>, VersionError> {
        let known = {
            let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            files.get(run).and_then(|versions| versions.get(&version).cloned())
        };
        if known.is_some() {
            return Ok(known);
        }
        let Some(bytes) = self.objects.get(&paths::manifest(run, version)).await? else { return Ok(None) };
        let manifest = read_manifest(run, version, &bytes)?;
        let found: Files = Arc::new(manifest.files.iter().flat_map(FileRef::stored).collect());
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.entry(run.clone()).or_default().insert(version, found.clone());
        Ok(Some(found))
    }
}

/// All versions up to `newest` that keep their files.
fn kept_versions(newest: PolicyVersion, retention: Retention) -> Vec<PolicyVersion> {
    (0..=newest.0).map(PolicyVersion).filter(|version| retention.keeps(*version, newest)).collect()
}

/// The youngest versions that do not.
fn given_up_versions(newest: PolicyVersion, retention: Retention) -> Vec<PolicyVersion> {
    let below = newest.0.saturating_sub(retention.newest.saturating_sub(1));
    let versions = (below.saturating_sub(LOOK_BACK)..below).map(PolicyVersion);
    versions.filter(|version| !retention.keeps(*version, newest)).collect()
}
