//! A folder in which the workers of one machine share weights: each blob is fetched once and read by all. What
//! is in it proves itself by its hash, so that a damaged file is fetched again, and everything in it may be removed
//! at any time.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use millrace_queue::ObjectError;
use millrace_schemas::BlobRef;
use millrace_schemas::blob::Sha;
use nix::sys::stat::futimens;
use nix::sys::statvfs::statvfs;
use nix::sys::time::TimeSpec;
use tokio::task::{JoinHandle, spawn_blocking};

/// Smaller blobs are fetched as fast as they are found.
const LEAST_BYTES: u64 = 1 << 20;
/// Between two looks at another worker's fetch.
const LOOK: Duration = Duration::from_millis(50);
/// Between two heartbeats of a worker that fetches.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// After so long without one it hangs, and the others fetch for themselves.
const PATIENCE: Duration = Duration::from_secs(5);
/// Files of writers that died are removed after this.
const LEFT_BEHIND: Duration = Duration::from_secs(60 * 60);

/// The part of its disk that stays free for others, as a divisor.
const RESERVE: u64 = 10;

const PART: &str = "part";
const LOCK: &str = "lock";

/// Bytes that a folder's disk can spare beyond what the folder holds; negative where it already holds too many.
pub(crate) type Spare = fn(&Path) -> io::Result<i64>;

/// How much a folder may hold.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Bytes of its blobs at most.
    most: u64,
    spare: Spare,
}

impl Room {
    /// Bytes of blobs for which there is room in a folder that holds so many.
    fn beside(self, folder: &Path, held: u64) -> io::Result<u64> {
        Ok(self.most.min(held.saturating_add_signed((self.spare)(folder)?)))
    }
}

/// The folder. Any number of processes may use it at once.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    room: Room,
    patience: Duration,
    /// Names the files that this process writes.
    written: AtomicU64,
    /// That it is too small for what is made was logged.
    told: AtomicBool,
}

impl Folder {
    /// A folder of `most` bytes of blobs at most, and fewer where a tenth of its disk would not stay free; those not used
    /// for longest go first. It is made if need be.
    ///
    /// # Errors
    /// It cannot be made or written to.
    pub(crate) fn open(path: PathBuf, most: u64) -> io::Result<Self> {
        std::fs::create_dir_all(&path)?;
        let tried = path.join(format!("{}.{PART}", std::process::id()));
        std::fs::write(&tried, b"")?;
        std::fs::remove_file(&tried)?;
        let room = Room { most, spare };
        let told = AtomicBool::new(false);
        Ok(Self { path, room, patience: PATIENCE, written: AtomicU64::new(0), told })
    }

    /// The same on a disk that can spare so much.
    #[cfg(test)]
    pub(crate) fn on_a_disk(mut self, spare: Spare) -> Self {
        self.room.spare = spare;
        self
    }

    /// Whether a blob of this size belongs here.
    pub(crate) const fn keeps(&self, blob: &BlobRef) -> bool {
        blob.bytes >= LEAST_BYTES && blob.bytes <= self.room.most
    }

    /// Whether blobs of so many bytes have room here at once, if all others go. That they have not is logged once.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        let room = blobs(&self.path)
            .and_then(|held| self.room.beside(&self.path, held.iter().map(|blob| blob.bytes).sum()));
        let has = room.as_ref().is_ok_and(|room| bytes <= *room);
        if !has && !self.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(folder = %self.path.display(), ?room, wanted = bytes,
                "no room for a version beside its anchor: each worker of this machine makes it for itself; \
                 make the folder larger, or free its disk, of which a tenth stays free");
        }
        has
    }

    /// A blob is needed, even where it is not read from here: others go first.
    pub(crate) fn used(&self, blob: &BlobRef) {
        let _ = File::open(self.path_of(blob)).and_then(|file| touch(&file));
    }

    /// The blob from here, or what `fetch` gives. Of several callers, in this process and others, one fetches. The others
    /// wait for as long as it is alive, then read. A failure to write the folder is logged and hinders nobody.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub(crate) async fn get_or(
        &self,
        blob: &BlobRef,
        fetch: impl Future<Output = Result<Bytes, ObjectError>> + Send,
    ) -> Result<Bytes, ObjectError> {
        if let Some(content) = self.read(blob).await {
            return Ok(content);
        }
        let lock = self.lock(blob).await;
        if self.path_of(blob).exists() {
            // The next one need not wait until this one has read.
            drop(lock);
            if let Some(content) = self.read(blob).await {
                return Ok(content);
            }
            return fetch.await;
        }
        let content = fetch.await?;
        self.keep(blob, content.clone()).await;
        drop(lock);
        Ok(content)
    }

    /// Keeps a blob whose hash is proved. That it could not be kept is logged.
    pub(crate) async fn keep(&self, blob: &BlobRef, content: Bytes) {
        let number = self.written.fetch_add(1, Ordering::Relaxed);
        let part = self.path.join(format!("{}-{}-{number}.{PART}", blob.sha256, std::process::id()));
        let (to, folder, room) = (self.path_of(blob), self.path.clone(), self.room);
        let kept = spawn_blocking(move || {
            let kept = std::fs::write(&part, &content).and_then(|()| std::fs::rename(&part, &to));
            if kept.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            kept.and_then(|()| make_room(&folder, &to, room))
        });
        if let Err(error) = kept.await.expect("it does not panic") {
            tracing::warn!(folder = %self.path.display(), %error, "weights are not kept for the other workers of this machine");
        }
    }

    fn path_of(&self, blob: &BlobRef) -> PathBuf {
        self.path.join(blob.sha256.to_string())
    }

    /// A blob that is here and is what it should be. One that is not is removed.
    async fn read(&self, blob: &BlobRef) -> Option<Bytes> {
        let (path, blob) = (self.path_of(blob), *blob);
        let read = spawn_blocking(move || {
            let content = std::fs::read(&path).ok()?;
            if BlobRef::of(&content) != blob {
                tracing::warn!(path = %path.display(), "a damaged file is removed and fetched again");
                let _ = std::fs::remove_file(&path);
                return None;
            }
            // Its use; who may not change it may read it all the same.
            let _ = File::open(&path).and_then(|file| touch(&file));
            Some(Bytes::from(content))
        });
        read.await.expect("it does not panic")
    }

    /// Consumes: nothing. Produces: the right to fetch a blob for all. Waits for: the worker that fetches it. Unblocked by:
    /// that worker's end, or its silence, after which there are two that fetch. On failure: nothing is shared.
    async fn lock(&self, blob: &BlobRef) -> Option<Fetching> {
        let path = self.path_of(blob).with_extension(LOCK);
        loop {
            let file = File::options().create(true).append(true).open(&path);
            let file = file.inspect_err(|error| {
                tracing::warn!(path = %path.display(), %error, "weights are not shared with the other workers of this machine");
            });
            let file = file.ok()?;
            match file.try_lock() {
                Ok(()) => return Some(Fetching::of(file, path)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(_)) => return None,
            }
            let last = file.metadata().and_then(|found| found.modified()).ok()?;
            if last.elapsed().is_ok_and(|silent| silent > self.patience) {
                tracing::warn!(path = %path.display(), "another worker of this machine hangs in a fetch; it is not waited for");
                return None;
            }
            drop(file);
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// The right to fetch, with heartbeats; it ends with this value, or with the process.
struct Fetching {
    path: PathBuf,
    heartbeats: JoinHandle<()>,
}

impl Fetching {
    fn of(file: File, path: PathBuf) -> Self {
        let heartbeats = tokio::spawn(async move {
            loop {
                let _ = touch(&file);
                tokio::time::sleep(HEARTBEAT).await;
            }
        });
        Self { path, heartbeats }
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        // A worker that locked the file that is removed here finds the blob, or fetches it once more.
        let _ = std::fs::remove_file(&self.path);
        self.heartbeats.abort();
    }
}

/// Sets the time of its last change to now, by the file system's clock.
fn touch(file: &File) -> io::Result<()> {
    Ok(futimens(file, &TimeSpec::UTIME_NOW, &TimeSpec::UTIME_NOW)?)
}

/// A blob in the folder. Those that were not used for longest come first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Held {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// What is in the folder. Files of writers that died are removed.
fn blobs(folder: &Path) -> io::Result<Vec<Held>> {
    let mut blobs = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // Another process may remove it meanwhile.
        let Ok(found) = path.metadata() else { continue };
        let used = found.modified()?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.parse::<Sha>().is_ok() {
            blobs.push(Held { used, bytes: found.len(), path });
        } else if path.extension().is_some_and(|end| end == PART)
            && used.elapsed().is_ok_and(|age| age > LEFT_BEHIND)
        {
            let _ = std::fs::remove_file(&path);
        }
    }
    Ok(blobs)
}

/// Removes what was not used for longest, but never `newest`.
fn make_room(folder: &Path, newest: &Path, room: Room) -> io::Result<()> {
    let mut blobs = blobs(folder)?;
    blobs.sort_unstable();
    let mut bytes: u64 = blobs.iter().map(|blob| blob.bytes).sum();
    let most = room.beside(folder, bytes)?;
    for blob in blobs {
        if bytes <= most {
            break;
        }
        if blob.path != newest {
            let _ = std::fs::remove_file(&blob.path);
            bytes -= blob.bytes;
        }
    }
    Ok(())
}

/// Bytes of the folder's disk that are free beyond [`RESERVE`]; negative where that is touched.
fn spare(folder: &Path) -> io::Result<i64> {
    let disk = statvfs(folder)?;
    let blocks = disk.blocks_available() as i64 - (disk.blocks() / RESERVE) as i64;
    Ok(blocks.saturating_mul(disk.fragment_size() as i64))
}

#[cfg(test)]
mod tests;
