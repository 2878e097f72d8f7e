//! The object store: a folder, any S3 server, or memory. Everything over 256 KiB lives here: weights,
//! optimiser state, batches, large payloads, snapshots.
//!
//! An object appears whole or not at all. Blobs are named by their content, so that writing one twice is
//! harmless and reading one proves what was read.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, TryStreamExt};
use millrace_schemas::blob::{Sha, paths};
use millrace_schemas::limits::REQUEST_TIMEOUT_MS;
use millrace_schemas::{BlobRef, RunId};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};

use crate::tls::choose_ring;

pub use access::BucketAccess;
pub use aged::Listed;
pub use error::ObjectError;
pub use file::from_anchor;
pub use location::BucketLocation;
pub use staged::staged_object;

mod access;
mod aged;
mod error;
mod file;
mod location;
mod staged;
mod upload;

use location::without_password;

/// Bytes of one ranged read. Many in parallel fill a network link that one alone does not.
const RANGE_BYTES: u64 = 8 * 1024 * 1024;
/// Ranges of one object that are read at once.
const RANGES_IN_FLIGHT: usize = 16;
/// Bytes above which hashing leaves the async threads.
const HASH_INLINE_BYTES: usize = 256 * 1024;
/// Tries of a conditional create that met a concurrent one which then came to nothing.
const CREATE_TRIES: u32 = 8;
/// Time for one request and its repetitions, before the caller hears of it.
const RETRY_TIMEOUT: Duration = Duration::from_millis(REQUEST_TIMEOUT_MS);

/// Longest pause between two repetitions of a request.
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// Why nothing is found in a store that is a folder, where the folder itself is not there.
const GONE: &str = "the store's own folder is gone";

/// What became of a conditional create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// This content is the object now.
    New,
    /// An object was there before; it is unchanged.
    Exists,
}

/// A handle to the object store. Clones share it.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// The folder, where the store is one: what is not in a folder that is gone was not looked for.
    folder: Option<Arc<std::path::Path>>,
}

impl Objects {
    /// Opens `memory:`, a folder (a path or `file://`; it is made if need be), or `s3://bucket/prefix`
    /// (endpoint, region and keys from the environment: `AWS_ENDPOINT`, `AWS_REGION`, `AWS_ACCESS_KEY_ID` …).
    ///
    /// # Errors
    /// The location is of none of these forms, or the folder cannot be made. A bucket is not asked for yet.
    pub fn open(location: &str) -> Result<Self, ObjectError> {
        let fail = |reason: String| ObjectError::Location { location: without_password(location), reason };
        if location == "memory:" {
            return Ok(Self::memory());
        }
        if let Some(rest) = location.strip_prefix(access::S3) {
            return open_s3(rest, AmazonS3Builder::from_env()).map_err(fail);
        }
        let Some(folder) = Self::folder_of(location) else {
            return Err(fail("it is neither a folder, file://… nor s3://bucket/prefix".into()));
        };
        std::fs::create_dir_all(folder).map_err(|e| fail(e.to_string()))?;
        let store = LocalFileSystem::new_with_prefix(folder).map_err(|e| fail(e.to_string()))?;
        // A commit that a power cut undoes would be no commit.
        let folder = Some(std::path::Path::new(folder).into());
        Ok(Self { store: Arc::new(store.with_fsync(true)), folder })
    }

    /// The folder that a location of [`Self::open`] names; `None` if it names none.
    #[must_use]
    pub fn folder_of(location: &str) -> Option<&str> {
        let folder = location.strip_prefix("file://").unwrap_or(location);
        (!folder.is_empty() && !folder.contains("://") && location != "memory:").then_some(folder)
    }

    /// Opens `bucket/prefix` on an S3 server with these settings alone, named as in the environment without
    /// `AWS_`: `endpoint`, `region`, `access_key_id` …
    ///
    /// # Errors
    /// A setting is unknown, or no bucket is named.
    pub fn open_s3<'a>(
        location: &str,
        settings: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, ObjectError> {
        let fail = |reason: String| ObjectError::Location { location: format!("s3://{location}"), reason };
        let mut builder = AmazonS3Builder::new();
        for (name, value) in settings {
            let name: AmazonS3ConfigKey =
                name.parse().map_err(|_| fail(format!("unknown setting {name}")))?;
            builder = builder.with_config(name, value);
        }
        open_s3(location, builder).map_err(fail)
    }

    /// Objects in `store`, whatever it is.
    #[cfg(feature = "testing")]
    pub(crate) fn over(store: Arc<dyn ObjectStore>) -> Self {
        Self { store, folder: None }
    }

    /// The store itself.
    #[cfg(feature = "testing")]
    pub(crate) fn store(&self) -> Arc<dyn ObjectStore> {
        self.store.clone()
    }

    /// An empty store of its own, in memory.
    #[must_use]
    pub fn memory() -> Self {
        Self { store: Arc::new(InMemory::new()), folder: None }
    }

    /// Stores `content` under its hash. The object is young afterwards, because the writer is about
    /// to refer to it, and it is whole, whatever was there before. A large object that is both
    /// already is read and not written; to ask about a small one costs more than to write it.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn put_blob(&self, run: &RunId, content: Bytes) -> Result<BlobRef, ObjectError> {
        self.put_hashed(|sha256| paths::blob(run, sha256), content).await
    }

    /// The same for a blob of no run: `path` builds its path of its hash.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn put_hashed(
        &self,
        path: impl Fn(&Sha) -> String,
        content: Bytes,
    ) -> Result<BlobRef, ObjectError> {
        let blob = BlobRef { sha256: hash(content.clone()).await, bytes: content.len() as u64 };
        let path = path(&blob.sha256);
        let is_large = blob.bytes > RANGE_BYTES;
        if !(is_large && self.has_young(&path, &blob).await? && self.holds(&path, &content).await?) {
            self.write(&path, content).await?;
        }
        Ok(blob)
    }

    /// Reads a blob and checks its content against its reference.
    ///
    /// # Errors
    /// [`ObjectError::NotFound`], [`ObjectError::Corrupt`] when hash or length differ, or the store fails.
    pub async fn get_blob(&self, run: &RunId, blob: &BlobRef) -> Result<Bytes, ObjectError> {
        self.get_hashed(&paths::blob(run, &blob.sha256), blob).await
    }

    /// The same at a path.
    ///
    /// # Errors
    /// As for [`get_blob`](Self::get_blob).
    pub async fn get_hashed(&self, path: &str, blob: &BlobRef) -> Result<Bytes, ObjectError> {
        let content = self.read_ranges(path, blob.bytes).await?;
        let found = hash(content.clone()).await;
        if found != blob.sha256 {
            return Err(ObjectError::Corrupt { path: path.into(), reason: format!("its sha256={found}") });
        }
        Ok(content)
    }

    /// Whether a blob exists, with the length in its reference. Its content is not read.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn has_blob(&self, run: &RunId, blob: &BlobRef) -> Result<bool, ObjectError> {
        self.has_hashed(&paths::blob(run, &blob.sha256), blob).await
    }

    /// The same at a path.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn has_hashed(&self, path: &str, blob: &BlobRef) -> Result<bool, ObjectError> {
        match self.store.head(&parse(path)?).await {
            Ok(meta) => Ok(meta.size == blob.bytes),
            Err(e) => absent(self.failed("look for", path, &e), false),
        }
    }

    /// Stores `content` at `path` unless an object exists there. Of several calls at once, exactly
    /// one gets `New`.
    ///
    /// # Errors
    /// The store cannot be reached or refuses. The object may have been created all the same. A
    /// second call then returns `Exists`, and the content identifies the writer.
    pub async fn create(&self, path: &str, content: Bytes) -> Result<Created, ObjectError> {
        let at = parse(path)?;
        for tried in 0..CREATE_TRIES {
            let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
            match self.store.put_opts(&at, PutPayload::from_bytes(content.clone()), options).await {
                Ok(_) => return Ok(Created::New),
                Err(object_store::Error::AlreadyExists { .. }) => {}
                Err(e) => return Err(self.failed("create", path, &e)),
            }
            // S3 answers 409 while another create is under way, which may yet fail. Only an object that can
            // be seen is a reason to give up.
            match self.store.head(&at).await {
                Ok(_) => return Ok(Created::Exists),
                Err(object_store::Error::NotFound { .. }) => {}
                Err(e) => return Err(self.failed("look for", path, &e)),
            }
            tokio::time::sleep(Duration::from_millis(20 << tried)).await;
        }
        let reason = "concurrent creates collided without end".into();
        Err(ObjectError::Unavailable { action: "create", path: path.into(), reason })
    }

    /// Stores `content` at `path`, over whatever is there.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn put(&self, path: &str, content: Bytes) -> Result<(), ObjectError> {
        self.write(path, content).await
    }

    /// The object at `path`, or `None`.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn get(&self, path: &str) -> Result<Option<Bytes>, ObjectError> {
        let fail = |e| self.failed("read", path, &e);
        match self.store.get(&parse(path)?).await {
            Ok(found) => found.bytes().await.map(Some).map_err(fail),
            Err(e) => absent(fail(e), None),
        }
    }

    /// Paths of all objects below the folder `prefix` (everything for an empty one), in order.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn list(&self, prefix: &str) -> Result<Vec<String>, ObjectError> {
        let below = if prefix.is_empty() { None } else { Some(parse(prefix)?) };
        let found = self.store.list(below.as_ref()).map_ok(|meta| meta.location.to_string());
        let mut found: Vec<String> =
            found.try_collect().await.map_err(|e| self.failed("list", prefix, &e))?;
        if found.is_empty() && self.is_gone() {
            let reason = GONE.into();
            return Err(ObjectError::Unavailable { action: "list", path: prefix.into(), reason });
        }
        found.sort_unstable();
        Ok(found)
    }

    /// Removes the object at `path`; nothing there is fine too.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn delete(&self, path: &str) -> Result<(), ObjectError> {
        match self.store.delete(&parse(path)?).await {
            Ok(()) => Ok(()),
            Err(e) => absent(self.failed("delete", path, &e), ()),
        }
    }

    fn failed(&self, action: &'static str, path: &str, error: &object_store::Error) -> ObjectError {
        let error = match ObjectError::from_store(action, path, error) {
            ObjectError::NotFound { path } if self.is_gone() => {
                ObjectError::Unavailable { action, path, reason: GONE.into() }
            }
            error => error,
        };
        if let Some(kind) = error.kind() {
            metrics::counter!("millrace_object_failures_total", "action" => action, "kind" => kind)
                .increment(1);
        }
        error
    }

    fn is_gone(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| !folder.is_dir())
    }

    async fn write(&self, path: &str, content: Bytes) -> Result<(), ObjectError> {
        let at = parse(path)?;
        let fail = |e| self.failed("write", path, &e);
        if content.len() > upload::ONE_REQUEST_BYTES {
            return upload::in_parts(&*self.store, &at, &content).await.map_err(fail);
        }
        self.store.put(&at, PutPayload::from_bytes(content)).await.map_err(fail)?;
        Ok(())
    }

    /// Begins an upload in parts at `path` and aborts it, so that nothing is left: whether the store lets us.
    ///
    /// # Errors
    /// The store cannot be reached or refuses.
    pub async fn try_upload(&self, path: &str) -> Result<(), ObjectError> {
        let tried = upload::begin_and_abort(&*self.store, &parse(path)?).await;
        tried.map_err(|e| self.failed("upload", path, &e))
    }

    /// Whether the object at `path`, of the same length, is `content`. Reads up to the first
    /// difference.
    async fn holds(&self, path: &str, content: &Bytes) -> Result<bool, ObjectError> {
        let at = parse(path)?;
        let bytes = content.len() as u64;
        let ranges: Vec<_> = (0..bytes)
            .step_by(RANGE_BYTES as usize)
            .map(|start| start..bytes.min(start + RANGE_BYTES))
            .map(async |range: Range<u64>| {
                let expected = content.slice(range.start as usize..range.end as usize);
                Ok(self.store.get_range(&at, range).await? == expected)
            })
            .collect();
        let mut ranges = futures::stream::iter(ranges).buffer_unordered(RANGES_IN_FLIGHT);
        while let Some(same) = ranges.next().await {
            match same.map_err(|e: object_store::Error| self.failed("read", path, &e)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // It was removed, or became shorter: it is to be written.
                Err(error) => return absent(error, false),
            }
        }
        Ok(true)
    }

    async fn read_ranges(&self, path: &str, bytes: u64) -> Result<Bytes, ObjectError> {
        let at = parse(path)?;
        let fail = |e| self.failed("read", path, &e);
        let range = (bytes > RANGE_BYTES).then(|| (0..RANGE_BYTES).into());
        let first = self.store.get_opts(&at, GetOptions { range, ..GetOptions::default() }).await;
        // Stores answer a range beyond the end each in their own way; the length tells what is wrong.
        let found = match &first {
            Ok(first) => first.meta.size,
            Err(object_store::Error::NotFound { .. }) => bytes,
            Err(_) => self.store.head(&at).await.map_or(bytes, |meta| meta.size),
        };
        if found != bytes {
            let reason = format!("it has bytes={found} where bytes={bytes} were stored");
            return Err(ObjectError::Corrupt { path: path.into(), reason });
        }
        let first = first.map_err(fail)?;
        let first = first.bytes().await.map_err(fail)?;
        if bytes <= RANGE_BYTES {
            return Ok(first);
        }
        let starts = (RANGE_BYTES..bytes).step_by(RANGE_BYTES as usize);
        let ranges = starts.map(|start| self.store.get_range(&at, start..bytes.min(start + RANGE_BYTES)));
        // The futures borrow the path, so collect them before they are polled out of order.
        let ranges: Vec<_> = ranges.collect();
        let mut ranges = futures::stream::iter(ranges).buffered(RANGES_IN_FLIGHT);
        let mut whole = BytesMut::with_capacity(bytes as usize);
        whole.extend_from_slice(&first);
        while let Some(part) = ranges.try_next().await.map_err(fail)? {
            whole.extend_from_slice(&part);
        }
        Ok(whole.freeze())
    }
}

/// What is not there is an answer; any other failure is none.
fn absent<T>(error: ObjectError, answer: T) -> Result<T, ObjectError> {
    match error {
        ObjectError::NotFound { .. } => Ok(answer),
        ObjectError::Location { .. }
        | ObjectError::Corrupt { .. }
        | ObjectError::Unavailable { .. }
        | ObjectError::Forbidden { .. }
        | ObjectError::Refused { .. } => Err(error),
    }
}

fn parse(path: &str) -> Result<Path, ObjectError> {
    Path::parse(path).map_err(|e| ObjectError::Refused {
        action: "name",
        path: path.into(),
        reason: e.to_string(),
    })
}

fn open_s3(rest: &str, builder: AmazonS3Builder) -> Result<Objects, String> {
    let BucketLocation { bucket, prefix } = BucketLocation::parse(rest)?;
    choose_ring();
    let backoff = BackoffConfig { max_backoff: MAX_BACKOFF, ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
    let mut store = builder.with_bucket_name(bucket).with_retry(retry);
    // Not every server compares content with the hash that signs a request; all that know checksums compare these.
    if store.get_config_value(&AmazonS3ConfigKey::Checksum).is_none() {
        store = store.with_checksum_algorithm(Checksum::SHA256);
    }
    let store = store.build().map_err(|e| e.to_string())?;
    if prefix.is_empty() {
        return Ok(Objects { store: Arc::new(store), folder: None });
    }
    let prefix = Path::parse(prefix).map_err(|e| e.to_string())?;
    Ok(Objects { store: Arc::new(PrefixStore::new(store, prefix)), folder: None })
}

/// The hash of `content`; a large one is hashed off the async threads.
async fn hash(content: Bytes) -> Sha {
    if content.len() <= HASH_INLINE_BYTES {
        return Sha::of(&content);
    }
    tokio::task::spawn_blocking(move || Sha::of(&content)).await.expect("hashing does not panic")
}
