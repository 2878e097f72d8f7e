//! Images of sandboxes in the object store: layers by the hash of their bytes, manifests by the hash
//! of theirs, and names that point to a manifest and hold what may be set.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::blob::{BlobRef, Sha};

/// Layers of an image at most. A stack of layers has 200, and a sandbox adds its own.
pub const MAX_IMAGE_LAYERS: usize = 127;
/// Characters of a name, and of a tag.
const NAME_CHARS: usize = 100;

/// What an image is made of. Never changed: its hash names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageManifest {
    /// The version of this form; 1.
    pub version: u32,
    /// Layers as OCI has them, tar, by itself or within gzip or zstd; the lowest first. `[L]`, 1 to 127.
    pub layers: Vec<BlobRef>,
    /// The environment of its processes.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

/// What a name points to, written over by the next push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagePointer {
    /// The hash of the manifest.
    pub manifest: Sha,
    /// Whether the machine's own programs are shown over it.
    #[serde(default)]
    pub system: bool,
    /// Sandboxes that a host holds ready for it.
    #[serde(default)]
    pub warm: u32,
}

/// A name and a tag: `python:3.11`. Without a tag it is `latest`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ImageName {
    /// The name.
    pub name: String,
    /// The tag.
    pub tag: String,
}

/// A text that is no image's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "image name={0:?}: write NAME or NAME:TAG of a-z, 0-9, '.', '-' and '_', a letter or digit first, at most 100"
)]
pub struct NotAnImageName(String);

impl FromStr for ImageName {
    type Err = NotAnImageName;

    fn from_str(text: &str) -> Result<Self, NotAnImageName> {
        let (name, tag) = text.split_once(':').unwrap_or((text, "latest"));
        let is_plain = |part: &str| {
            let plain =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '-' | '_');
            part.len() <= NAME_CHARS
                && part.chars().all(plain)
                && part.starts_with(|c: char| c.is_ascii_alphanumeric())
        };
        if is_plain(name) && is_plain(tag) {
            return Ok(Self { name: name.to_owned(), tag: tag.to_owned() });
        }
        Err(NotAnImageName(text.chars().take(NAME_CHARS).collect()))
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.tag)
    }
}

/// Why a manifest or a pointer cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Its bytes are not what its name says.
    #[error("the manifest {wanted} has the hash {found}: push the image again")]
    Hash {
        /// Its name.
        wanted: Sha,
        /// The hash of what was read.
        found: Sha,
    },
    /// It is no JSON of this form.
    #[error("{0}: push the image again, with this version of millrace")]
    Form(String),
}

impl ImageManifest {
    /// Its bytes, which its hash is of.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a manifest has only what JSON can express")
    }

    /// Reads the manifest of this hash.
    ///
    /// # Errors
    /// The bytes have another hash, or are of no known form.
    pub fn from_json(wanted: Sha, bytes: &[u8]) -> Result<Self, ImageError> {
        let found = Sha::of(bytes);
        if found != wanted {
            return Err(ImageError::Hash { wanted, found });
        }
        let read: Self =
            serde_json::from_slice(bytes).map_err(|error| ImageError::Form(error.to_string()))?;
        let (version, layers) = (read.version, read.layers.len());
        if version != 1 || !(1..=MAX_IMAGE_LAYERS).contains(&layers) {
            let words = format!("a manifest has version={version} and layers={layers}, not 1 and 1 to 127");
            return Err(ImageError::Form(words));
        }
        Ok(read)
    }
}

impl ImagePointer {
    /// Its bytes.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a pointer has only what JSON can express")
    }

    /// Reads one.
    ///
    /// # Errors
    /// The bytes are of no known form.
    pub fn from_json(bytes: &[u8]) -> Result<Self, ImageError> {
        serde_json::from_slice(bytes).map_err(|error| ImageError::Form(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_plain_and_a_manifest_is_what_its_hash_says() {
        for (text, shown) in [("python:3.11", "python:3.11"), ("swe-bench_1.0", "swe-bench_1.0:latest")] {
            assert_eq!(text.parse::<ImageName>().expect("a name").to_string(), shown);
        }
        for text in ["", "../x", "a/b", "A", ":", "a:", ":b", "a:b:c", ".a", "a:..", "a b", &"x".repeat(101)]
        {
            assert!(text.parse::<ImageName>().is_err(), "{text}");
        }
        let manifest = ImageManifest { version: 1, layers: vec![BlobRef::of(b"x")], env: BTreeMap::new() };
        let bytes = manifest.to_json();
        assert_eq!(ImageManifest::from_json(Sha::of(&bytes), &bytes), Ok(manifest.clone()));
        assert!(matches!(ImageManifest::from_json(Sha::of(b""), &bytes), Err(ImageError::Hash { .. })));
        for wrong in
            [ImageManifest { version: 2, ..manifest.clone() }, ImageManifest { layers: vec![], ..manifest }]
        {
            let bytes = wrong.to_json();
            assert!(matches!(ImageManifest::from_json(Sha::of(&bytes), &bytes), Err(ImageError::Form(_))));
        }
    }
}
