//! Versions of a run, from the object store: manifest, then blobs in parallel, each verified.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_schemas::PolicyVersion;
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use serde::Deserialize;

use crate::policy::{CONFIG_FILE, PolicyError};

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
