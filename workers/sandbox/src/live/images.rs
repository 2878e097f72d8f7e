//! Images: layers as OCI has them, in a folder of this machine that many processes and users of it
//! share. `blobs/DIGEST` is a layer as it travels, which somebody else puts there; `layers/DIGEST` is
//! one that is unpacked, there as a whole or not at all, with its size in `bytes`; `locks/DIGEST` is
//! held by who unpacks or removes, alone, and by all who use the layer, together. A process that dies
//! leaves `layers/.DIGEST.part` or `layers/.DIGEST.gone`, which the next one removes.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::futimens;
use nix::sys::time::TimeSpec;
use sha2::{Digest as _, Sha256};

use crate::live::host::Host;
use crate::live::layers::Snapshot;
use crate::live::spec::{LiveError, MAX_LAYERS};
use crate::live::store::{Digest, hex, refused};

/// Bytes that are hashed, and sent, at once.
const PIECE: usize = 128 * 1024;
/// Who owns the files of a cache where this process is root: sandboxes run as nobody then.
const NOBODY: u32 = 65_534;
/// Between two looks for a layer that others have locked without unpacking it.
const AGAIN: Duration = Duration::from_millis(5);
/// Bytes of an unpacked layer at most, with the holes of sparse files, unless a cache says another bound.
/// What has more is not packed either.
pub const LAYER_BYTES: u64 = 16 << 30;
/// File of a layer that has its size.
const BYTES: &str = "bytes";

/// A folder of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageCache {
    folder: PathBuf,
    /// Bytes of one unpacked layer at most.
    pub layer_bytes: u64,
    /// Entries of one layer at most.
    pub layer_files: u64,
}

impl ImageCache {
    /// Opens a folder, and makes it where it is not there. 16 GiB and a million entries for a layer.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(folder: &Path) -> Result<Self, LiveError> {
        for part in ["blobs", "layers", "locks"] {
            fs::create_dir_all(folder.join(part)).map_err(|error| refused("make", folder, &error))?;
        }
        let folder = folder.canonicalize().map_err(|error| refused("find", folder, &error))?;
        Ok(Self { folder, layer_bytes: LAYER_BYTES, layer_files: 1_000_000 })
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn layer(&self, digest: &Digest) -> PathBuf {
        self.folder.join("layers").join(digest.as_str())
    }

    /// Whether a layer is here, packed or unpacked.
    #[must_use]
    pub fn has(&self, digest: &Digest) -> bool {
        self.layer(digest).exists() || self.folder.join("blobs").join(digest.as_str()).exists()
    }

    /// The file by which a layer is locked.
    fn lock_of(&self, name: &str) -> Result<File, LiveError> {
        let lock = self.folder.join("locks").join(name);
        let opened = File::options().write(true).create(true).truncate(false).open(&lock);
        opened.map_err(|error| refused("lock", &lock, &error))
    }

    /// Unpacks a layer unless it is there, and keeps it there as long as the file is open. Waits for
    /// another process that unpacks or removes it, and never for one that uses it. `None` where another has locked it and
    /// not unpacked it: others look at it at this moment, or have just unpacked it.
    fn hold(&self, program: &Path, digest: &Digest) -> Result<Option<File>, LiveError> {
        let fail = |error: io::Error| refused("lock", &self.layer(digest), &error);
        loop {
            let held = self.lock_of(digest.as_str())?;
            held.lock_shared().map_err(fail)?;
            if self.layer(digest).exists() {
                // The layers that were used least recently go first.
                let now = TimeSpec::UTIME_NOW;
                futimens(&held, &now, &now).map_err(|error| fail(error.into()))?;
                return Ok(Some(held));
            }
            drop(held);
            if !self.unpack(program, digest)? {
                return Ok(None);
            }
        }
    }

    /// Whether the layer's bytes are what its name says is proved before the first of them is
    /// unpacked. Does nothing where another has the lock: once it has unpacked the layer, its sandboxes keep the lock as
    /// long as they live. Returns whether the layer is there.
    fn unpack(&self, program: &Path, digest: &Digest) -> Result<bool, LiveError> {
        let layer = self.layer(digest);
        let fail = |error: io::Error| refused("lock", &layer, &error);
        // Held as long as the file is open: a process that dies lets go.
        let held = self.lock_of(digest.as_str())?;
        match held.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Error(error)) => return Err(fail(error)),
        }
        if layer.exists() {
            return Ok(true);
        }
        let blob = self.folder.join("blobs").join(digest.as_str());
        prove(&blob, digest)?;
        let part = self.folder.join("layers").join(format!(".{}.part", digest.as_str()));
        let done = remove(&part).and_then(|()| self.fill(program, &blob, &part, &held));
        let done =
            done.and_then(|()| fs::rename(&part, &layer).map_err(|error| refused("name", &layer, &error)));
        // What is left of a failure is removed now, or by the next try.
        let _ = if done.is_err() { remove(&part) } else { fs::remove_file(&blob).map_err(fail) };
        done.map(|()| true)
    }

    /// Removes unpacked layers that nobody uses, the least recently used first, until `most` bytes are
    /// left. Those in use stay, also above that. Returns the bytes that are left.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn trim(&self, most: u64) -> Result<u64, LiveError> {
        let layers = self.folder.join("layers");
        let fail = |error: io::Error| refused("read", &layers, &error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&layers).map_err(fail)? {
            let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).map_err(fail)?;
            let Some(name) = name.to_str() else { continue };
            if name.ends_with(".gone") {
                // A process died while it removed this one.
                remove(&path)?;
            } else if !name.starts_with('.') {
                let used = self.lock_of(name)?.metadata().and_then(|lock| lock.modified()).ok();
                found.push((used, name.to_owned(), size(&path)));
            }
        }
        found.sort_unstable();
        let mut left: u64 = found.iter().map(|(_, _, bytes)| bytes).sum();
        for (_, name, bytes) in found {
            if left <= most {
                break;
            }
            if self.evict(&name)? {
                left -= bytes;
            }
        }
        Ok(left)
    }

    /// Removes a layer unless it is in use.
    fn evict(&self, name: &str) -> Result<bool, LiveError> {
        let held = self.lock_of(name)?;
        if held.try_lock().is_err() {
            return Ok(false);
        }
        let (layers, gone) = (self.folder.join("layers"), format!(".{name}.gone"));
        match fs::rename(layers.join(name), layers.join(&gone)) {
            Ok(()) => remove(&layers.join(gone)).map(|()| true),
            // Another process was first.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(error) => Err(refused("remove", &layers.join(name), &error)),
        }
    }

    /// Who unpacks holds the lock, too, as its output: it may live a moment longer than this process.
    fn fill(&self, program: &Path, blob: &Path, part: &Path, lock: &File) -> Result<(), LiveError> {
        let files = part.join("u");
        let made = fs::create_dir_all(&files).and_then(|()| give_to_sandboxes(&files));
        made.map_err(|error| refused("make", &files, &error))?;
        let start = |error: io::Error| LiveError::start(program, &error);
        let mut child = Command::new(program)
            .env_clear()
            .arg("unpack-image")
            .arg(&files)
            .args([self.layer_bytes.to_string(), self.layer_files.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::from(lock.try_clone().map_err(start)?))
            .stderr(Stdio::piped())
            .spawn()
            .map_err(start)?;
        let sent = child.stdin.take().map(|mut to| copy(blob, |piece| to.write_all(piece)));
        let output = child.wait_with_output().map_err(start)?;
        if !output.status.success() {
            // It says itself why it takes no more.
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(LiveError::Refused(format!("failed to unpack the layer {}: {said}", blob.display())));
        }
        sent.unwrap_or(Ok(())).map_err(|error| refused("read", blob, &error))?;
        let bytes = part.join(BYTES);
        fs::write(&bytes, walk(&files).to_string()).map_err(|error| refused("write", &bytes, &error))
    }
}

impl Host {
    /// The files of an image whose layers are in a cache, packed or unpacked; the lowest first.
    ///
    /// # Errors
    /// A layer is not there, is not what its name says, or has what a layer may not have.
    pub async fn image(&self, cache: &ImageCache, layers: &[Digest]) -> Result<Snapshot, LiveError> {
        if layers.is_empty() || layers.len() >= MAX_LAYERS {
            let (field, value) = ("layers", format!("{} layers", layers.len()));
            return Err(LiveError::Invalid { field, value, remedy: "an image has 1 to 199 layers" });
        }
        let mut shown = Vec::new();
        for digest in layers.iter().rev() {
            let held = loop {
                let (own, program, wanted) = (cache.clone(), self.settings().program.clone(), digest.clone());
                let held = tokio::task::spawn_blocking(move || own.hold(&program, &wanted)).await;
                match held.map_err(|error| LiveError::Refused(error.to_string()))?? {
                    Some(held) => break held,
                    None => tokio::time::sleep(AGAIN).await,
                }
            };
            let layer = self.keeper().show(&cache.layer(digest)).await?;
            shown.push(Arc::new(layer.keeping(held)));
        }
        Ok(Snapshot { layers: shown })
    }
}

fn prove(blob: &Path, digest: &Digest) -> Result<(), LiveError> {
    let mut hash = Sha256::new();
    let read = copy(blob, |piece| {
        hash.update(piece);
        Ok(())
    });
    read.map_err(|error| refused("read", blob, &error))?;
    let found = hex(&hash.finalize());
    if found != digest.as_str() {
        let wrong = format!("failed to read {}: its bytes have the digest {found}", blob.display());
        return Err(LiveError::Refused(wrong));
    }
    Ok(())
}

fn copy(from: &Path, mut to: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let (mut file, mut piece) = (File::open(from)?, vec![0; PIECE]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            n => to(&piece[..n])?,
        }
    }
}

fn give_to_sandboxes(folder: &Path) -> io::Result<()> {
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(folder, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(())
}

/// Bytes of an unpacked layer on the disk.
fn size(layer: &Path) -> u64 {
    let told = fs::read_to_string(layer.join(BYTES)).ok().and_then(|text| text.parse().ok());
    told.unwrap_or_else(|| walk(layer))
}

/// Bytes on the disk of all that is below a folder. What cannot be read counts for nothing.
fn walk(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => 512 * data.blocks() + walk(&entry.path()),
        Ok(data) => 512 * data.blocks(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

fn remove(folder: &Path) -> Result<(), LiveError> {
    let fail = |error: io::Error| refused("remove", folder, &error);
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // An image may have folders that its owner may not write to.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_to_owner(folder).and_then(|()| fs::remove_dir_all(folder)).map_err(fail)
        }
        removed => removed.map_err(fail),
    }
}

/// Lets the owner of a folder write to all folders below it.
fn open_to_owner(folder: &Path) -> io::Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_to_owner(&entry.path())?;
        }
    }
    Ok(())
}
