//! `publish_weights`: a version is committed by creating its manifest, last and once. The first
//! commit of a version wins, and every later one reports what the first wrote. Then old versions'
//! files are collected.

use async_trait::async_trait;
use futures::TryStreamExt;
use millrace_queue::{Created, ObjectError, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::publish_weights::{FILE_IS_MISSING, Manifest, PublishWeightsDone, PublishWeightsTask};
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{OutcomeBody, Task, TaskBody};
use tokio_util::sync::CancellationToken;

use crate::model::versions::{FILES_IN_FLIGHT, VersionError, read_manifest};
use crate::runtime::{Cost, Executor, Failure, Verdict};
use collect::Collector;

mod collect;
mod memory;

/// Executes `publish_weights` tasks.
#[derive(Debug)]
pub struct PublishWeights {
    objects: Objects,
    collector: Collector,
}

/// Why a version is not committed.
#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Weights(#[from] VersionError),
    #[error("failed to commit {version}: its file {name} {}", FILE_IS_MISSING)]
    MissingFile { version: millrace_schemas::PolicyVersion, name: String },
    #[error("failed to commit {version}: {reason}")]
    Refused { version: millrace_schemas::PolicyVersion, reason: String },
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Object(error) => error.into(),
            PublishError::Weights(error) => error.into(),
            // A file that is missing here may exist at another replica of the store.
            PublishError::MissingFile { .. } => Self::soon(error),
            PublishError::Refused { .. } => Self::impossible(error),
        }
    }
}

impl PublishWeights {
    /// Commits to `objects`.
    #[must_use]
    pub fn new(objects: Objects) -> Self {
        Self { collector: Collector::new(objects.clone()), objects }
    }

    async fn commit(&self, task: PublishWeightsTask) -> Result<PublishWeightsDone, PublishError> {
        let PublishWeightsTask { manifest, retention } = task;
        let (standing, sha, created) = self.stand(manifest).await?;
        let bytes = standing.files.iter().map(FileRef::written_bytes).sum();
        // The version is committed even if the collection fails: the next commit collects, too.
        let collected = self.collector.collect(&standing, retention).await;
        Ok(PublishWeightsDone { manifest: sha, batch: standing.batch, created, bytes, collected })
    }

    /// Creates the manifest, or reads the existing one; returns which one exists.
    async fn stand(&self, manifest: Manifest) -> Result<(Manifest, Sha, bool), PublishError> {
        let version = manifest.version;
        if let Some((name, value)) = manifest.metrics.iter().find(|(_, value)| !value.is_finite()) {
            return Err(PublishError::Refused {
                version,
                reason: format!("its {name}={value} is not finite"),
            });
        }
        let path = paths::manifest(&manifest.run, version);
        // A retry finds its manifest, but perhaps not all of its files: they may have been
        // collected since.
        if let Some(standing) = self.objects.get(&path).await? {
            return Ok((read_manifest(&manifest.run, version, &standing)?, Sha::of(&standing), false));
        }
        self.check_files(&manifest).await?;
        let content = manifest.to_json();
        match self.objects.create(&path, content.clone().into()).await? {
            Created::New => Ok((manifest, Sha::of(&content), true)),
            Created::Exists => {
                let standing = self.objects.get(&path).await?.ok_or(ObjectError::NotFound { path })?;
                Ok((read_manifest(&manifest.run, version, &standing)?, Sha::of(&standing), false))
            }
        }
    }

    /// A manifest names only files that exist.
    async fn check_files(&self, manifest: &Manifest) -> Result<(), PublishError> {
        let files = manifest.files.iter();
        let files = files.flat_map(|file| file.stored().map(|blob| (file.name.as_str(), blob)));
        let named: Vec<_> = files.chain(manifest.batch.map(|batch| ("batch", batch))).collect();
        futures::stream::iter(named.into_iter().map(Ok))
            .try_for_each_concurrent(FILES_IN_FLIGHT, async |(name, blob)| {
                if self.objects.has_blob(&manifest.run, &blob).await? {
                    return Ok(());
                }
                Err(PublishError::MissingFile { version: manifest.version, name: name.to_owned() })
            })
            .await
    }
}

#[async_trait]
impl Executor for PublishWeights {
    async fn execute(&self, task: Task, _cancel: CancellationToken) -> Verdict {
        let TaskBody::PublishWeights(publish) = &task.body else { return Failure::misrouted(&task).into() };
        if publish.manifest.run != task.run {
            return Failure::impossible(format!("its manifest is of run={}", publish.manifest.run)).into();
        }
        let committed = self.commit(publish.clone()).await.map_err(Failure::from);
        committed.map(|done| (OutcomeBody::PublishWeights(done), Cost::default())).into()
    }
}

#[cfg(test)]
mod tests;
