//! Images: layers as OCI has them, in a folder of this machine that many processes and users of it
//! share. `blobs/DIGEST` is a layer as it travels, which somebody else puts there; `layers/DIGEST` is
//! one that is unpacked, there as a whole or not at all; `locks/DIGEST` is held by who unpacks. A
//! process that dies while it unpacks leaves `layers/.DIGEST.part`, which the next one removes.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::live::host::Host;
use crate::live::layers::Snapshot;
use crate::live::spec::{LiveError, MAX_LAYERS};
use crate::live::store::{Digest, hex, refused};

/// Bytes that are hashed, and sent, at once.
const PIECE: usize = 128 * 1024;
/// Who owns the files of a cache where this process is root: sandboxes run as nobody then.
const NOBODY: u32 = 65_534;

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
        Ok(Self { folder, layer_bytes: 16 << 30, layer_files: 1_000_000 })
    }

    /// Where it is.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn layer(&self, digest: &Digest) -> PathBuf {
        self.folder.join("layers").join(digest.as_str())
    }

    /// Unpacks a layer unless it is there. Waits for another process that does. Whether the layer's
    /// bytes are what its name says is proved before the first of them is unpacked.
    fn unpack(&self, program: &Path, digest: &Digest) -> Result<(), LiveError> {
        let layer = self.layer(digest);
        if layer.exists() {
            return Ok(());
        }
        let lock = self.folder.join("locks").join(digest.as_str());
        let fail = |error: io::Error| refused("lock", &lock, &error);
        // Held as long as the file is open: a process that dies lets go.
        let held = File::create(&lock).map_err(fail)?;
        held.lock().map_err(fail)?;
        if layer.exists() {
            return Ok(());
        }
        let blob = self.folder.join("blobs").join(digest.as_str());
        prove(&blob, digest)?;
        let part = self.folder.join("layers").join(format!(".{}.part", digest.as_str()));
        let done = remove(&part).and_then(|()| self.fill(program, &blob, &part, &held));
        let done =
            done.and_then(|()| fs::rename(&part, &layer).map_err(|error| refused("name", &layer, &error)));
        // What is left of a failure is removed now, or by the next try.
        let _ = if done.is_err() { remove(&part) } else { fs::remove_file(&blob).map_err(fail) };
        done
    }

    /// Who unpacks holds the lock, too, as its output: it may live a moment longer than this process.
    fn fill(&self, program: &Path, blob: &Path, part: &Path, lock: &File) -> Result<(), LiveError> {
        let files = part.join("u");
        let made = fs::create_dir_all(&files).and_then(|()| give_to_sandboxes(&files));
        made.map_err(|error| refused("make", &files, &error))?;
        let start =
            |error: io::Error| LiveError::Start { program: program.to_owned(), reason: error.to_string() };
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
        sent.unwrap_or(Ok(())).map_err(|error| refused("read", blob, &error))
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
            let (own, program, wanted) = (cache.clone(), self.settings().program.clone(), digest.clone());
            let unpacked = tokio::task::spawn_blocking(move || own.unpack(&program, &wanted)).await;
            unpacked.map_err(|error| LiveError::Refused(error.to_string()))??;
            shown.push(Arc::new(self.keeper().show(&cache.layer(digest)).await?));
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

fn remove(folder: &Path) -> Result<(), LiveError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refused("remove", folder, &error)),
        _ => Ok(()),
    }
}
