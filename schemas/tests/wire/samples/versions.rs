//! Committed versions and their files.

use millrace_schemas::PolicyVersion;
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::{DeltaRef, FileRef};

use super::{Sample, blob, metrics};

/// A stored JSON document: exactly these bytes are hashed, so they may not change either.
pub(super) fn manifest_sample(name: &'static str, manifest: &Manifest) -> Sample {
    Sample {
        name,
        bytes: manifest.to_json(),
        again: |bytes| {
            let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
            Ok(manifest.to_json())
        },
    }
}

pub(super) fn file() -> FileRef {
    FileRef::whole("model.safetensors", blob("weights"))
}

/// Its content as changes of an earlier file.
pub(super) fn file_delta() -> FileRef {
    let delta = DeltaRef { anchor: blob("anchor"), changes: blob("changes") };
    FileRef { delta: Some(delta), ..file() }
}

pub(super) fn manifest() -> Manifest {
    Manifest {
        run: "lake".parse().expect("a run's name"),
        version: PolicyVersion(5),
        parent: Some(Sha::of(b"parent")),
        batch: Some(blob("batch")),
        config: Sha::of(b"config"),
        files: vec![file()],
        metrics: metrics(),
    }
}
