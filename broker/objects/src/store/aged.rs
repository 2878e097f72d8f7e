//! The age of objects by the store's own clock, for garbage collection.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::TryStreamExt;
use millrace_schemas::BlobRef;
use millrace_schemas::blob::paths;
use millrace_schemas::limits::REFRESH_BLOB_MS;
use object_store::{ObjectMeta, ObjectStoreExt};
use serde::Serialize;

use super::{GONE, ObjectError, Objects, absent, parse};

/// An object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// Its path.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// When it was last written, in milliseconds since 1970 by the store's clock.
    pub modified_ms: u64,
}

impl Listed {
    fn of(meta: &ObjectMeta) -> Self {
        let modified_ms = u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0);
        Self { path: meta.location.to_string(), bytes: meta.size, modified_ms }
    }
}

impl Objects {
    /// All objects below the folder `prefix` (everything for an empty one), in the order of their paths.
    ///
    /// # Errors
    /// The store cannot be reached, refuses, or has a name that cannot be a path.
    pub async fn list_aged(&self, prefix: &str) -> Result<Vec<Listed>, ObjectError> {
        let below = if prefix.is_empty() { None } else { Some(parse(prefix)?) };
        let found = self.store.list(below.as_ref()).map_ok(|meta| Listed::of(&meta));
        let found: Result<Vec<Listed>, _> = found.try_collect().await;
        let mut found = found.map_err(|e| self.failed("list", prefix, &e))?;
        if found.is_empty() && self.is_gone() {
            return Err(ObjectError::Unavailable {
                action: "list",
                path: prefix.into(),
                reason: GONE.into(),
            });
        }
        found.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    /// What time it is at the store, in milliseconds since 1970.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn now_ms(&self) -> Result<u64, ObjectError> {
        self.put(paths::CLOCK, Bytes::new()).await?;
        let found = self.store.head(&parse(paths::CLOCK)?).await;
        Ok(Listed::of(&found.map_err(|e| self.failed("look for", paths::CLOCK, &e))?).modified_ms)
    }

    /// Removes an object, or a staged write, unless it was written after it was listed. Returns whether it was removed.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn delete_unchanged(&self, listed: &Listed) -> Result<bool, ObjectError> {
        if let Some(removed) = self.delete_staged(listed).await? {
            return Ok(removed);
        }
        let at = parse(&listed.path)?;
        match self.store.head(&at).await {
            Ok(meta) if Listed::of(&meta) == *listed => {
                self.delete(&listed.path).await?;
                Ok(true)
            }
            Ok(_) => Ok(false),
            Err(e) => absent(self.failed("look for", &listed.path, &e), false),
        }
    }

    /// Whether a blob is there, and was written so lately that nobody collects it before it is referred to.
    pub(super) async fn has_young(&self, path: &str, blob: &BlobRef) -> Result<bool, ObjectError> {
        match self.store.head(&parse(path)?).await {
            Ok(meta) => Ok(meta.size == blob.bytes && is_young(&meta)),
            Err(e) => absent(self.failed("look for", path, &e), false),
        }
    }
}

/// By this machine's clock, which need not agree with the store's but for hours.
#[expect(clippy::disallowed_methods, reason = "whether a blob is written again changes no decision")]
fn is_young(meta: &ObjectMeta) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let modified = Duration::from_millis(Listed::of(meta).modified_ms);
    now.saturating_sub(modified) < Duration::from_millis(REFRESH_BLOB_MS)
}
