//! Objects: references by content hash, and every path in the object store.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use crate::ids::RunId;
use crate::version::PolicyVersion;

/// A SHA-256 hash; 64 hex digits on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha(pub [u8; 32]);

impl Sha {
    /// The hash of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The hash of several parts, without joining them in memory.
    #[must_use]
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = Sha256::new();
        for part in parts {
            hasher.update(part);
        }
        Self(hasher.finalize().into())
    }

    /// The first eight hex digits, for people.
    #[must_use]
    pub fn short(&self) -> String {
        hex::encode(&self.0[..4])
    }
}

impl fmt::Display for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Sha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha({})", self.short())
    }
}

/// A text that is not 64 hex digits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("hash value={0:?} is not 64 lower-case hex digits")]
pub struct NotASha(String);

impl FromStr for Sha {
    type Err = NotASha;

    fn from_str(s: &str) -> Result<Self, NotASha> {
        let mut bytes = [0; 32];
        match hex::decode_to_slice(s, &mut bytes) {
            Ok(()) if !s.bytes().any(|b| b.is_ascii_uppercase()) => Ok(Self(bytes)),
            _ => Err(NotASha(s.chars().take(80).collect())),
        }
    }
}

impl Serialize for Sha {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let word = <Cow<'de, str>>::deserialize(d)?;
        word.parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Sha {
    fn schema_name() -> Cow<'static, str> {
        "Sha".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "pattern": "^[0-9a-f]{64}$" })
    }
}

/// An immutable object, named by the hash of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BlobRef {
    /// SHA-256 of the content.
    pub sha256: Sha,
    /// Length of the content.
    pub bytes: u64,
}

impl BlobRef {
    /// The reference to `content`.
    #[must_use]
    pub fn of(content: &[u8]) -> Self {
        Self { sha256: Sha::of(content), bytes: content.len() as u64 }
    }
}

/// Paths in the object store. All are built here.
pub mod paths;
