//! A version of a policy: its files, and what their names mean.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_schemas::PolicyVersion;
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use serde::Deserialize;

use crate::PolicyError;

/// The file of a version that tells the kind of the others.
pub const CONFIG_FILE: &str = "config.json";
/// The weights of a version, and of a model directory that is not sharded.
pub const MODEL_FILE: &str = "model.safetensors";
/// The start of the names of the files of the optimiser's state.
pub const OPTIMIZER_PREFIX: &str = "optimizer";
/// The critic of a version whose algorithm has one.
pub const CRITIC_FILE: &str = "critic.safetensors";

/// Whether only training needs a file of this name. Such a file is left out where a version is only
/// sampled from.
#[must_use]
pub fn is_for_training(name: &str) -> bool {
    name.starts_with(OPTIMIZER_PREFIX) || name == CRITIC_FILE
}

/// A version with the content of its files, which are those of the manifest.
#[derive(Debug, Clone)]
pub struct LoadedVersion {
    /// The version.
    pub version: PolicyVersion,
    /// As committed.
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
