//! `publish_weights`: a trained version is committed. The manifest is written last and created
//! once: the first commit of a version wins, and a retry finds it and reports the same.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::blob::{BlobRef, Sha};
use crate::ids::RunId;
use crate::train_shard::FileRef;
use crate::version::PolicyVersion;

/// The last words about a commit whose file is missing. The coordinator knows by them that the step
/// must be made again.
pub const FILE_IS_MISSING: &str = "is not in the object store";

/// Commit one version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishWeightsTask {
    /// The manifest to write.
    pub manifest: Manifest,
    /// Which versions' blobs to keep.
    pub retention: Retention,
}

/// Which versions keep their blobs. Manifests are kept for ever: a version number is never used
/// again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Retention {
    /// The newest this many versions keep their blobs. Default 4; at least 2.
    #[serde(default = "Retention::default_newest")]
    pub newest: u64,
    /// Every version that is a multiple of this keeps its blobs too; 0 for none. Default 0.
    #[serde(default)]
    pub every: u64,
    /// Every this many steps, and after the last, a version keeps its optimiser's state. If that
    /// state is lost, the steps since the newest such version are redone. Default 8; at least 1.
    #[serde(default = "Retention::default_checkpoint_every")]
    pub checkpoint_every: u64,
    /// Every this many steps, and after the last, the weights are stored whole: an anchor. In
    /// between only what changed since the anchor is, where that is at most a quarter. A worker
    /// older than this setting cannot read those versions. At 1 all are whole. Default 1.
    #[serde(
        default = "Retention::default_anchor_every",
        skip_serializing_if = "Retention::is_default_anchor_every"
    )]
    #[schemars(extend("default" = 1))]
    pub anchor_every: u64,
}

impl Retention {
    const fn default_newest() -> u64 {
        4
    }

    const fn default_checkpoint_every() -> u64 {
        8
    }

    const fn default_anchor_every() -> u64 {
        1
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    const fn is_default_anchor_every(every: &u64) -> bool {
        *every == Self::default_anchor_every()
    }

    /// Whether `version` is made with its optimiser's state; 0 means 1.
    #[must_use]
    pub const fn is_checkpoint(&self, version: PolicyVersion) -> bool {
        self.checkpoint_every <= 1 || version.0.is_multiple_of(self.checkpoint_every)
    }

    /// Whether the weights of `version` are stored whole. Those that are kept for good are, so that
    /// they keep no anchor besides.
    #[must_use]
    pub const fn is_anchor(&self, version: PolicyVersion) -> bool {
        self.anchor_every <= 1
            || version.0.is_multiple_of(self.anchor_every)
            || (self.every > 0 && version.0.is_multiple_of(self.every))
    }

    /// Whether `version` keeps its blobs once `newest` is committed. Version 0 always does. Logs may
    /// have runs with settings of any size, which older versions accepted.
    #[must_use]
    pub const fn keeps(&self, version: PolicyVersion, newest: PolicyVersion) -> bool {
        version.0 == 0
            || version.0.saturating_add(self.newest) > newest.0
            || (self.every > 0 && version.0.is_multiple_of(self.every))
            || (self.is_checkpoint(version) && version.0.saturating_add(self.checkpoint_every) > newest.0)
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            newest: Self::default_newest(),
            every: 0,
            checkpoint_every: Self::default_checkpoint_every(),
            anchor_every: Self::default_anchor_every(),
        }
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
    /// Step metrics by name.
    pub metrics: BTreeMap<String, f64>,
}

impl Manifest {
    /// The bytes that are stored. They are a function of the content.
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

impl PublishWeightsTask {
    /// The outcome of a first commit of so many bytes, which removed nothing.
    #[must_use]
    pub fn committed(&self, bytes: u64) -> PublishWeightsDone {
        PublishWeightsDone {
            manifest: Sha::of(&self.manifest.to_json()),
            batch: self.manifest.batch,
            created: true,
            bytes,
            collected: Vec::new(),
        }
    }
}

/// The version is committed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PublishWeightsDone {
    /// Hash of the committed manifest, which another commit may have written.
    pub manifest: Sha,
    /// The batch of the committed manifest; `None` for version 0. If it is not the task's batch,
    /// another commit came first.
    #[serde(default)]
    pub batch: Option<BlobRef>,
    /// Whether this commit certainly wrote it. `false` if it existed, for example after a retry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// Bytes that the version's files take: of those stored as changes, the changes.
    pub bytes: u64,
    /// Versions whose blobs this commit removed.
    pub collected: Vec<PolicyVersion>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_the_interval_and_those_that_are_kept_for_good() {
        let anchors = |retention: Retention| -> Vec<u64> {
            (0..=12).filter(|version| retention.is_anchor(PolicyVersion(*version))).collect()
        };
        let every = |anchor_every, every| Retention { anchor_every, every, ..Retention::default() };
        assert_eq!(anchors(Retention::default()).len(), 13, "every version is whole unless asked");
        assert_eq!(anchors(every(0, 0)).len(), 13);
        assert_eq!(anchors(every(5, 0)), [0, 5, 10]);
        assert_eq!(anchors(every(5, 4)), [0, 4, 5, 8, 10, 12]);
    }

    #[test]
    fn retention_answers_at_every_setting_that_is_accepted() {
        // Older versions accepted any number.
        for count in [0, 1, 2, 10, u64::MAX - 1, u64::MAX] {
            let retention =
                Retention { newest: count, every: count, checkpoint_every: count, anchor_every: count };
            for version in [0, 1, 5].map(PolicyVersion) {
                let kept = retention.keeps(version, PolicyVersion(5));
                assert!(kept || count < 10, "{version} {retention:?}");
                let whole = retention.is_checkpoint(version) && retention.is_anchor(version);
                assert_eq!(whole, version.0 == 0 || count < 2, "{version} {retention:?}");
            }
            assert!(retention.keeps(PolicyVersion(u64::MAX), PolicyVersion(5)));
        }
    }

    #[test]
    fn a_setting_that_is_not_used_is_not_written() {
        let text = serde_json::to_string(&Retention::default()).unwrap();
        assert!(!text.contains("anchor"), "older workers refuse words that they do not know: {text}");
    }
}
