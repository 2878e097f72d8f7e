//! `publish_weights`: a trained version is committed. The manifest is written last and created once: the
//! first commit of a version wins, a retry finds it and reports the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::blob::{BlobRef, Sha};
use crate::ids::RunId;
use crate::train_shard::FileRef;
use crate::version::PolicyVersion;

/// Commit one version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishWeightsTask {
    /// What to write.
    pub manifest: Manifest,
    /// Which old versions' blobs to keep.
    pub retention: Retention,
}

/// Which versions keep their blobs. Manifests are kept for ever: a version number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// The newest this many versions keep their blobs. Default 4; at least 2.
    #[serde(default = "Retention::default_newest")]
    pub newest: u64,
    /// So does every version that is a multiple of this; 0 for none. Default 0.
    #[serde(default)]
    pub every: u64,
    /// Every this many steps, and after the last, a version keeps its optimiser's state. From the newest such
    /// version the steps since are made again where that state was lost. Default 8; at least 1.
    #[serde(default = "Retention::default_checkpoint_every")]
    pub checkpoint_every: u64,
}

impl Retention {
    const fn default_newest() -> u64 {
        4
    }

    const fn default_checkpoint_every() -> u64 {
        8
    }

    /// Whether `version` is made with its optimiser's state; 0 stands for 1.
    #[must_use]
    pub const fn is_checkpoint(&self, version: PolicyVersion) -> bool {
        self.checkpoint_every <= 1 || version.0.is_multiple_of(self.checkpoint_every)
    }

    /// Whether `version` keeps its blobs once `newest` is committed. Version 0 always does.
    #[must_use]
    pub const fn keeps(&self, version: PolicyVersion, newest: PolicyVersion) -> bool {
        version.0 == 0
            || version.0 + self.newest > newest.0
            || (self.every > 0 && version.0.is_multiple_of(self.every))
            || (self.is_checkpoint(version) && version.0 + self.checkpoint_every > newest.0)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self { newest: Self::default_newest(), every: 0, checkpoint_every: Self::default_checkpoint_every() }
    }
}

/// A committed version: `weights/v000042/manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// The run.
    pub run: RunId,
    /// The version.
    pub version: PolicyVersion,
    /// Hash of the manifest of the version before; `None` for version 0.
    pub parent: Option<Sha>,
    /// The batch that it was trained on; `None` for version 0.
    pub batch: Option<BlobRef>,
    /// Hash of the run file.
    pub config: Sha,
    /// The files, by name.
    pub files: Vec<FileRef>,
    /// What the step measured.
    pub metrics: BTreeMap<String, f64>,
}

impl Manifest {
    /// The bytes that are stored, the same for the same content.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest holds only what JSON can express");
        text.push(b'\n');
        text
    }

    /// The file called `name`.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&BlobRef> {
        self.files.iter().find(|file| file.name == name).map(|file| &file.blob)
    }
}

/// The version is committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishWeightsDone {
    /// Hash of the manifest that stands, whoever wrote it.
    pub manifest: Sha,
    /// The batch that the manifest that stands was trained on; `None` for version 0. Another batch than the
    /// one handed in means that another commit stood already.
    #[serde(default)]
    pub batch: Option<BlobRef>,
    /// Whether this commit wrote it, for certain. `false` where it was found, by a retry for example.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// Bytes of the files it names.
    pub bytes: u64,
    /// Versions whose blobs were collected on this occasion.
    pub collected: Vec<PolicyVersion>,
}
