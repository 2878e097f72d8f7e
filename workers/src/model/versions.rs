//! Versions of a run, from the object store: the manifest that a hash names, then its files in
//! parallel, each proved by its own hash.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::{StreamExt, TryStreamExt};
use millrace_policy::probe::PROBE_FILE;
use millrace_policy::{CONFIG_FILE, LoadedVersion, is_for_training, text_codec};
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::{PolicyVersion, RunId, file_name};

use super::blob_cache::{BlobCache, Tries};
use super::files::FileStore;
use super::folder::Folder;
use crate::runtime::Failure;

/// Files of a version that are read or written at once.
pub(crate) const FILES_IN_FLIGHT: usize = 8;

/// A selection of a version's files. Each includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// No file: the manifest alone.
    Manifest,
    /// `config.json`, which tells what the others are.
    Config,
    /// The files of the text codec.
    Text,
    /// What is read where a server computes: the text codec's files and the probe.
    Small,
    /// What an engine samples with.
    Model,
    /// Also what a trainer needs: the critic and the optimiser's state.
    All,
}

impl Files {
    fn include(self, name: &str) -> bool {
        match self {
            Self::Manifest => false,
            Self::Config => name == CONFIG_FILE,
            Self::Text => name == CONFIG_FILE || text_codec::FILES.contains(&name),
            Self::Small => Self::Text.include(name) || name == PROBE_FILE,
            Self::Model => !is_for_training(name),
            Self::All => true,
        }
    }
}

/// Why a version cannot be fetched.
#[derive(Debug, Clone, thiserror::Error)]
pub enum VersionError {
    /// The object store failed, lacks an object, or holds a damaged one.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The manifest is not the one that was named.
    #[error("manifest of {version} is not the one named: sha256={found}, not {expected}")]
    OtherManifest {
        /// The version.
        version: PolicyVersion,
        /// The hash of the one in the store.
        found: Sha,
        /// The hash that was named.
        expected: Sha,
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

impl From<VersionError> for Failure {
    /// Retried, elsewhere perhaps. An object that does not exist may be one that a replica of the
    /// store does not know yet.
    fn from(error: VersionError) -> Self {
        Self::soon(error)
    }
}

impl VersionError {
    /// Whether trying again may help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Object(error) => error.is_transient(),
            Self::OtherManifest { .. } | Self::Manifest { .. } => false,
        }
    }
}

/// Fetches versions. Clones share the cached content.
#[derive(Debug, Clone)]
pub struct VersionStore {
    files: FileStore,
}

impl VersionStore {
    /// A store with an empty cache in front of `objects`.
    #[must_use]
    pub fn new(objects: Objects) -> Self {
        Self { files: FileStore::new(BlobCache::new(objects), None) }
    }

    /// The same, with a folder in which the workers of this machine share weights.
    #[must_use]
    pub(crate) fn sharing(self, folder: Option<Arc<Folder>>) -> Self {
        Self { files: FileStore::new(self.blobs().clone(), folder) }
    }

    /// The same, with a folder of at most so many bytes that the workers of this machine share.
    ///
    /// # Errors
    /// The folder cannot be made or written to.
    pub fn sharing_in(self, path: PathBuf, most_bytes: u64) -> io::Result<Self> {
        Ok(self.sharing(Some(Arc::new(Folder::open(path, most_bytes)?))))
    }

    /// Through which it reads files.
    #[must_use]
    pub const fn files(&self) -> &FileStore {
        &self.files
    }

    /// The cache of other blobs.
    #[must_use]
    pub const fn blobs(&self) -> &BlobCache {
        self.files.blobs()
    }

    /// The object store behind it.
    #[must_use]
    pub const fn objects(&self) -> &Objects {
        self.blobs().objects()
    }

    /// Fetches a version and proves it: the manifest by `sha`, each file by the manifest. Transient
    /// errors of the store are retried a few times.
    ///
    /// # Errors
    /// The version does not exist, is not what `sha` names, or the store cannot be reached.
    pub async fn fetch(
        &self,
        run: &RunId,
        version: PolicyVersion,
        sha: Sha,
        files: Files,
    ) -> Result<LoadedVersion, VersionError> {
        let mut tries = Tries::default();
        loop {
            match self.try_fetch(run, version, sha, files).await {
                Err(error) if error.is_transient() && tries.are_left(run, version, &error).await => {}
                answer => return answer,
            }
        }
    }

    async fn try_fetch(
        &self,
        run: &RunId,
        version: PolicyVersion,
        expected: Sha,
        files: Files,
    ) -> Result<LoadedVersion, VersionError> {
        let path = paths::manifest(run, version);
        let bytes = self.objects().get(&path).await?.ok_or(ObjectError::NotFound { path })?;
        let found = Sha::of(&bytes);
        if found != expected {
            return Err(VersionError::OtherManifest { version, found, expected });
        }
        let manifest = read_manifest(run, version, &bytes)?;
        let named = manifest.files.iter().filter(|file| files.include(&file.name));
        let named: Vec<_> = named.cloned().collect();
        let files = futures::stream::iter(named)
            .map(async |file| {
                let content = self.files.try_fetch(run, &file).await?;
                Ok::<_, VersionError>((file.name, content))
            })
            .buffer_unordered(FILES_IN_FLIGHT)
            .try_collect()
            .await?;
        Ok(LoadedVersion { version, manifest, sha: expected, files })
    }
}

/// Reads a manifest whose hash is proved.
pub(crate) fn read_manifest(
    run: &RunId,
    version: PolicyVersion,
    bytes: &[u8],
) -> Result<Manifest, VersionError> {
    let fail = |reason: String| VersionError::Manifest { version, reason };
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
