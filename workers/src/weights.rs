//! Versions of a run, from the object store: the manifest that a hash names, then its files in parallel, each
//! proved by its own hash. A small cache saves what this process wrote or read a moment ago.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::{BlobRef, PolicyVersion, RunId, file_name};
use serde::Deserialize;

use crate::executor::Verdict;
use crate::policy::probe::PROBE_FILE;
use crate::policy::{CONFIG_FILE, PolicyError, is_for_training};
use crate::text;
use cache::BlobCache;

mod cache;

/// Files of a version that are read or written at once.
pub(crate) const FILES_IN_FLIGHT: usize = 8;
/// Tries to fetch a version before the task that needs it is given back, and the pause between two.
const TRIES: (u32, Duration) = (5, Duration::from_millis(500));
/// For how long a task is given back whose version cannot be fetched.
const REFETCH: Duration = Duration::from_secs(2);

/// A version whose files are here and are what the manifest says.
#[derive(Debug, Clone)]
pub struct LoadedVersion {
    /// The version.
    pub version: PolicyVersion,
    /// What was committed.
    pub manifest: Manifest,
    /// Hash of the manifest.
    pub sha: Sha,
    /// The files by name.
    pub files: BTreeMap<String, Bytes>,
}

impl LoadedVersion {
    /// The file called `name`.
    ///
    /// # Errors
    /// The version has no such file.
    pub fn file(&self, name: &str) -> Result<&Bytes, PolicyError> {
        self.files
            .get(name)
            .ok_or_else(|| PolicyError::Impossible(format!("version={} has no file {name}", self.version)))
    }

    /// `model_type` of its `config.json`.
    ///
    /// # Errors
    /// The version has no readable `config.json`.
    pub fn model_type(&self) -> Result<String, PolicyError> {
        #[derive(Deserialize)]
        struct Config {
            model_type: String,
        }
        let config: Config = serde_json::from_slice(self.file(CONFIG_FILE)?)
            .map_err(|e| PolicyError::Impossible(format!("failed to read {CONFIG_FILE}: {e}")))?;
        Ok(config.model_type)
    }
}

/// Which files of a version are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// None: the manifest alone.
    Manifest,
    /// The one that says what the others are.
    Config,
    /// The tokenizer and what goes with it.
    Text,
    /// Those that are read even where another process computes: what the model is, its text, its trainer's record.
    Small,
    /// Those to sample with.
    Model,
    /// Those to train on with, too.
    All,
}

impl Files {
    fn include(self, name: &str) -> bool {
        match self {
            Self::Manifest => false,
            Self::Config => name == CONFIG_FILE,
            Self::Text => name == CONFIG_FILE || text::FILES.contains(&name),
            Self::Small => Self::Text.include(name) || name == PROBE_FILE,
            Self::Model => !is_for_training(name),
            Self::All => true,
        }
    }
}

/// Why a version is not here.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WeightsError {
    /// The object store failed, lacks an object, or holds a damaged one.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The manifest is not the one that was named.
    #[error("manifest of {version} is not the one named: sha256={found}, not {wanted}")]
    OtherManifest {
        /// The version.
        version: PolicyVersion,
        /// The hash of what stands.
        found: Sha,
        /// The hash that was named.
        wanted: Sha,
    },
    /// The manifest has the right hash and is no manifest of this version.
    #[error("failed to read the manifest of {version}: {reason}")]
    Manifest {
        /// The version.
        version: PolicyVersion,
        /// What is wrong with it.
        reason: String,
    },
}

impl WeightsError {
    /// What becomes of a task that needs the version: it is tried at another time or place. An object that is not there
    /// may be one that a replica of the store does not know yet.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::RetryAfter(REFETCH, self.to_string())
    }

    /// Whether trying again may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Object(error) => error.is_transient(),
            Self::OtherManifest { .. } | Self::Manifest { .. } => false,
        }
    }
}

/// Fetches versions. Clones share the cache.
#[derive(Debug, Clone)]
pub struct Weights {
    objects: Objects,
    cache: Arc<BlobCache>,
}

impl Weights {
    /// Fetches from `objects`.
    #[must_use]
    pub fn new(objects: Objects) -> Self {
        Self { objects, cache: Arc::default() }
    }

    /// The object store behind it.
    #[must_use]
    pub const fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Fetches a version and proves it: the manifest by `sha`, each file by the manifest. A store that cannot
    /// be reached is tried again a few times.
    ///
    /// # Errors
    /// The version is not there, is not what `sha` names, or the store stays away.
    pub async fn fetch(
        &self,
        run: &RunId,
        version: PolicyVersion,
        sha: Sha,
        files: Files,
    ) -> Result<LoadedVersion, WeightsError> {
        for _ in 1..TRIES.0 {
            match self.try_fetch(run, version, sha, files).await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(%run, %version, %error, "weights not fetched yet");
                    tokio::time::sleep(TRIES.1).await;
                }
                answer => return answer,
            }
        }
        self.try_fetch(run, version, sha, files).await
    }

    async fn try_fetch(
        &self,
        run: &RunId,
        version: PolicyVersion,
        wanted: Sha,
        files: Files,
    ) -> Result<LoadedVersion, WeightsError> {
        let path = paths::manifest(run, version);
        let bytes = self.objects.get(&path).await?.ok_or(ObjectError::NotFound { path })?;
        let found = Sha::of(&bytes);
        if found != wanted {
            return Err(WeightsError::OtherManifest { version, found, wanted });
        }
        let manifest = read_manifest(run, version, &bytes)?;
        let named = manifest.files.iter().filter(|file| files.include(&file.name));
        let named: Vec<_> = named.map(|file| (file.name.clone(), file.blob)).collect();
        let files = futures::stream::iter(named)
            .map(async |(name, blob)| Ok::<_, WeightsError>((name, self.blob(run, blob).await?)))
            .buffer_unordered(FILES_IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(LoadedVersion { version, manifest, sha: wanted, files })
    }

    /// A blob, proved by its hash: here, or when it came into the cache. A store that cannot be reached is tried
    /// again a few times.
    ///
    /// # Errors
    /// It is not there, or the store stays away.
    pub async fn fetch_blob(&self, run: &RunId, blob: BlobRef) -> Result<Bytes, ObjectError> {
        for _ in 1..TRIES.0 {
            match self.blob(run, blob).await {
                Err(error) if error.is_transient() => {
                    tracing::warn!(%run, sha256 = %blob.sha256, %error, "blob not fetched yet");
                    tokio::time::sleep(TRIES.1).await;
                }
                answer => return answer,
            }
        }
        self.blob(run, blob).await
    }

    /// A blob, proved by its hash: here, or when it came into the cache.
    async fn blob(&self, run: &RunId, blob: BlobRef) -> Result<Bytes, ObjectError> {
        if let Some(content) = self.cache.get(&blob.sha256) {
            return Ok(content);
        }
        let content = self.objects.get_blob(run, &blob).await?;
        self.cache.insert(blob.sha256, content.clone());
        Ok(content)
    }

    /// Stores a file of a version to be, and keeps it at hand.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn store(&self, run: &RunId, content: Bytes) -> Result<BlobRef, ObjectError> {
        let blob = self.objects.put_blob(run, content.clone()).await?;
        self.cache.insert(blob.sha256, content);
        Ok(blob)
    }
}

/// Reads a manifest whose hash is proved.
pub(crate) fn read_manifest(
    run: &RunId,
    version: PolicyVersion,
    bytes: &[u8],
) -> Result<Manifest, WeightsError> {
    let fail = |reason: String| WeightsError::Manifest { version, reason };
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| fail(e.to_string()))?;
    if manifest.run != *run || manifest.version != version {
        return Err(fail(format!("it is of run={} version={}", manifest.run, manifest.version)));
    }
    for file in &manifest.files {
        file_name::check(&file.name).map_err(|e| fail(e.to_string()))?;
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests;
