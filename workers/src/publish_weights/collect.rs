//! Collection of old versions' files. A version that retention does not keep loses its files,
//! except those that a kept version names too. Manifests and batches stay for ever: they are the
//! run's record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::publish_weights::{Manifest, Retention};
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, PolicyVersion, RunId};

use super::memory::Memory;
use crate::model::versions::{VersionError, read_manifest};

/// Versions below the kept ones that each collection checks. One falls out with each commit; the
/// others make up for collections that failed or were cut short.
const LOOK_BACK: u64 = 16;
/// Manifests that are read at once, and files that are collected at once.
const IN_FLIGHT: usize = 16;
/// Time for one collection. The run waits for it with the next version.
pub(super) const WITHIN: Duration = Duration::from_secs(5);

/// The files of a version.
pub(super) type Files = Arc<Vec<BlobRef>>;

/// The versions that lost files in a collection.
type Lost = Mutex<BTreeSet<PolicyVersion>>;

/// Collects old versions' files. Manifests never change, so each is read once; a collected file is looked at
/// once.
#[derive(Debug)]
pub(super) struct Collector {
    objects: Objects,
    memory: Memory,
}

impl Collector {
    pub(super) fn new(objects: Objects) -> Self {
        Self { objects, memory: Memory::default() }
    }

    /// Collects the files that `retention` gives up now that `newest` is committed; returns the
    /// versions that lost files. What fails or takes too long is left to the next collection.
    pub(super) async fn collect(&self, newest: &Manifest, retention: Retention) -> Vec<PolicyVersion> {
        let lost = Lost::default();
        let collected = tokio::time::timeout(WITHIN, self.collect_all(newest, retention, &lost)).await;
        let why = match collected {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("it took longer than {WITHIN:?}")),
        };
        if let Some(error) = why {
            tracing::warn!(run = %newest.run, version = %newest.version, %error, "old versions not collected");
        }
        lost.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().collect()
    }

    async fn collect_all(
        &self,
        newest: &Manifest,
        retention: Retention,
        lost: &Lost,
    ) -> Result<(), VersionError> {
        // A commit must not collect its own files, even if the task's retention allows it.
        let retention = Retention { newest: retention.newest.clamp(1, u64::from(u32::MAX)), ..retention };
        let run = &newest.run;
        let newest = self.newest(run, newest.version).await?;
        let kept = self.read(run, kept_versions(newest, retention)).await?;
        let reachable: BTreeSet<Sha> =
            kept.values().flat_map(|files| files.iter().map(|b| b.sha256)).collect();
        let given_up = self.read(run, given_up_versions(newest, retention)).await?;
        let left = futures::stream::iter(self.left(run, &given_up, &reachable).into_values())
            .map(|(blob, versions)| self.collect_blob(run, blob, versions, lost))
            .buffer_unordered(IN_FLIGHT);
        // One that fails does not keep the others.
        let done: Vec<Result<(), ObjectError>> = left.collect().await;
        Ok(done.into_iter().collect::<Result<_, _>>()?)
    }

    /// The files of given-up versions that may exist and that no kept version names, each with the versions
    /// that name it.
    fn left(
        &self,
        run: &RunId,
        given_up: &BTreeMap<PolicyVersion, Files>,
        reachable: &BTreeSet<Sha>,
    ) -> BTreeMap<Sha, (BlobRef, Vec<PolicyVersion>)> {
        let gone = self.memory.gone(run, given_up);
        let mut left = BTreeMap::new();
        for (version, files) in given_up {
            for blob in files.iter().filter(|blob| !reachable.contains(&blob.sha256)) {
                if !gone.contains(&(*version, blob.sha256)) {
                    left.entry(blob.sha256).or_insert((*blob, Vec::new())).1.push(*version);
                }
            }
        }
        left
    }

    /// Deletes a file, which its first version loses.
    async fn collect_blob(
        &self,
        run: &RunId,
        blob: BlobRef,
        versions: Vec<PolicyVersion>,
        lost: &Lost,
    ) -> Result<(), ObjectError> {
        if self.objects.has_blob(run, &blob).await? {
            self.objects.delete(&paths::blob(run, &blob.sha256)).await?;
            lost.lock().unwrap_or_else(PoisonError::into_inner).extend(versions.first());
        }
        self.memory.set_gone(run, &versions, blob.sha256);
        Ok(())
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
            .buffer_unordered(IN_FLIGHT);
        let read: Vec<(PolicyVersion, Option<Files>)> = read.try_collect().await?;
        Ok(read.into_iter().filter_map(|(version, files)| Some((version, files?))).collect())
    }

    /// The files of a version; `None` if it is not committed.
    async fn files(&self, run: &RunId, version: PolicyVersion) -> Result<Option<Files>, VersionError> {
        if let Some(known) = self.memory.files(run, version) {
            return Ok(Some(known));
        }
        let Some(bytes) = self.objects.get(&paths::manifest(run, version)).await? else { return Ok(None) };
        let manifest = read_manifest(run, version, &bytes)?;
        let found: Files = Arc::new(manifest.files.iter().flat_map(FileRef::stored).collect());
        self.memory.set_files(run, version, found.clone());
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
