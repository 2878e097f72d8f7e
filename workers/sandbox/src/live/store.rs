//! Snapshots in a folder, which another host of another machine may read: each layer under the
//! digest of its bytes. Files alone are kept: no process, no memory, no attribute of a file besides
//! its name, content, rights and time.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;

use crate::live::host::Host;
use crate::live::layers::Snapshot;
use crate::live::spec::{Bounds, LiveError, MAX_LAYERS};
use crate::run::piped;

/// Bytes that are hashed at once.
const PIECE: usize = 128 * 1024;

/// The name of a packed layer: SHA-256 of its bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(String);

impl Digest {
    /// A digest as it is written: 64 hexadecimal digits, in lower case.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<Self, LiveError> {
        let is_hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        if text.len() == 64 && text.chars().all(is_hex) {
            return Ok(Self(text.to_owned()));
        }
        let remedy = "a digest has 64 hexadecimal digits in lower case";
        Err(LiveError::Invalid { field: "digest", value: text.chars().take(80).collect(), remedy })
    }

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Where a packed layer lies in a folder.
    #[must_use]
    pub fn path(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.tar.zst", self.0))
    }
}

impl Host {
    /// Writes the layers of a snapshot into a folder, those alone that are not there. Returns their
    /// names, topmost first: what [`load`](Self::load) needs.
    ///
    /// # Errors
    /// The folder cannot be written, or a layer has more than [`LAYER_BYTES`](crate::live::LAYER_BYTES).
    pub async fn save(&self, snapshot: &Snapshot, folder: &Path) -> Result<Vec<Digest>, LiveError> {
        let mut digests = Vec::new();
        for layer in &snapshot.layers {
            let digest = layer.digest.get_or_try_init(|| self.pack(layer.number, folder)).await?;
            // It may have been written into another folder before.
            if !tokio::fs::try_exists(digest.path(folder)).await.unwrap_or(false) {
                self.pack(layer.number, folder).await?;
            }
            digests.push(digest.clone());
        }
        Ok(digests)
    }

    /// A snapshot from the layers of a folder, topmost first. Each has room for `bounds`.
    ///
    /// # Errors
    /// A layer is missing or is not what its name says, or has more than `bounds` allow.
    pub async fn load(
        &self,
        digests: &[Digest],
        folder: &Path,
        bounds: &Bounds,
    ) -> Result<Snapshot, LiveError> {
        if digests.len() >= MAX_LAYERS {
            let (field, value) = ("digests", format!("{} layers", digests.len()));
            return Err(LiveError::Invalid { field, value, remedy: "a file system has at most 200 layers" });
        }
        let mut layers = Vec::new();
        for digest in digests {
            let layer = self.keeper().layer(bounds).await?;
            self.unpack(layer.number, digest, folder).await?;
            let _ = layer.digest.set(digest.clone());
            layers.push(Arc::new(layer));
        }
        Ok(Snapshot { layers })
    }

    fn helper(&self, part: &str, layer: u64) -> Result<Child, LiveError> {
        let program = &self.settings().program;
        piped(program)
            .args([part, &self.keeper().pid().to_string(), &layer.to_string()])
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| LiveError::start(program, &error))
    }

    /// Writes a layer into a folder. Dropped, it ends the process that packs; a part may be left.
    pub(crate) async fn pack(&self, layer: u64, folder: &Path) -> Result<Digest, LiveError> {
        let fail = |error: std::io::Error| refused("write", folder, &error);
        // A name that no other layer of this process has, nor one of another process.
        let part = folder.join(format!(".{}-{}-{layer}.part", std::process::id(), self.keeper().pid()));
        let mut child = self.helper("pack", layer)?;
        let mut from = child.stdout.take().ok_or(LiveError::Ended)?;
        let (mut file, mut hash, mut piece) =
            (File::create(&part).await.map_err(fail)?, Sha256::new(), vec![0; PIECE]);
        let copied = async {
            loop {
                let n = from.read(&mut piece).await?;
                if n == 0 {
                    return file.sync_all().await;
                }
                hash.update(&piece[..n]);
                file.write_all(&piece[..n]).await?;
            }
        };
        let copied = copied.await.map_err(fail);
        let done = match copied {
            Ok(()) => success(child).await,
            Err(error) => Err(error),
        };
        let digest = Digest(hex(&hash.finalize()));
        let done = match done {
            Ok(()) => tokio::fs::rename(&part, digest.path(folder)).await.map_err(fail),
            Err(error) => Err(error),
        };
        if done.is_err() {
            let _ = tokio::fs::remove_file(&part).await;
        }
        done.map(|()| digest)
    }

    async fn unpack(&self, layer: u64, digest: &Digest, folder: &Path) -> Result<(), LiveError> {
        let path = digest.path(folder);
        let fail = |error: std::io::Error| refused("read", &path, &error);
        let mut file = File::open(&path).await.map_err(fail)?;
        let mut child = self.helper("unpack", layer)?;
        let mut to = child.stdin.take().ok_or(LiveError::Ended)?;
        let (mut hash, mut piece) = (Sha256::new(), vec![0; PIECE]);
        loop {
            let n = file.read(&mut piece).await.map_err(fail)?;
            if n == 0 {
                break;
            }
            hash.update(&piece[..n]);
            // It says itself why it takes no more.
            if to.write_all(&piece[..n]).await.is_err() {
                break;
            }
        }
        drop(to);
        success(child).await?;
        let found = hex(&hash.finalize());
        if found != digest.0 {
            let wrong = format!("failed to read {}: its bytes have the digest {found}", path.display());
            return Err(LiveError::Refused(wrong));
        }
        Ok(())
    }
}

pub(crate) fn refused(what: &str, path: &Path, error: &std::io::Error) -> LiveError {
    LiveError::Refused(format!("failed to {what} {}: {error}", path.display()))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn success(child: Child) -> Result<(), LiveError> {
    let output = child.wait_with_output().await.map_err(|error| LiveError::Refused(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(LiveError::Refused(format!("failed to pack or unpack a layer: {}", said.trim())))
}
