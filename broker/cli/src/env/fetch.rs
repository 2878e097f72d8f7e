//! The layers of an image in a host's cache: `CACHE/blobs/SHA`, whole or not at all. Those that the
//! host has unpacked, as `CACHE/layers/SHA`, are not fetched.

use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use millrace_objects::Objects;
use millrace_schemas::BlobRef;
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::image::ImageName;
use serde_json::json;

use crate::term::say;

pub(super) async fn run(objects: &Objects, name: &ImageName, cache: &Path) -> Result<()> {
    let (pointer, manifest) = super::find(objects, name).await?;
    let blobs = cache.join("blobs");
    std::fs::create_dir_all(&blobs).with_context(|| format!("failed to make {}", blobs.display()))?;
    for layer in &manifest.layers {
        let unpacked = cache.join("layers").join(layer.sha256.to_string());
        if !unpacked.exists() && !is_whole(&blobs, layer)? {
            let content = objects.get_hashed(&paths::layer(&layer.sha256), layer).await?;
            write(&blobs, layer, &content)?;
        }
    }
    let layers: Vec<String> = manifest.layers.iter().map(|layer| layer.sha256.to_string()).collect();
    say(json!({
        "manifest": pointer.manifest,
        "layers": layers,
        "env": manifest.env,
        "system": pointer.system,
        "warm": pointer.warm,
    }));
    Ok(())
}

/// Whether the cache has these very bytes already.
fn is_whole(blobs: &Path, layer: &BlobRef) -> Result<bool> {
    let path = blobs.join(layer.sha256.to_string());
    match std::fs::metadata(&path) {
        Ok(found) if found.len() == layer.bytes => {
            Ok(Sha::of(&std::fs::read(&path).context("failed to read the cache")?) == layer.sha256)
        }
        _ => Ok(false),
    }
}

/// Several processes may write the same blob: each its own file, and the last name holds.
fn write(blobs: &Path, layer: &BlobRef, content: &Bytes) -> Result<()> {
    let part = blobs.join(format!(".{}.part", uuid::Uuid::now_v7()));
    let path = blobs.join(layer.sha256.to_string());
    let written = std::fs::write(&part, content).and_then(|()| std::fs::rename(&part, &path));
    if written.is_err() {
        let _ = std::fs::remove_file(&part);
    }
    written.with_context(|| format!("failed to write {}", path.display()))
}
