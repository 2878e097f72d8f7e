//! Files of a user's directory: regular ones only, of bounded length. A link to a device or a pipe
//! would hang the reader, and a link to another file of this machine would make that file a part of
//! the model.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use millrace_schemas::file_name;
use nix::fcntl::OFlag;

/// Opens a regular file. A FIFO or a device is refused without waiting for it.
///
/// # Errors
/// There is none, or it is of another kind.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for its writer otherwise.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file; put a copy of the file there"))
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// There is none, it is of another kind, or longer.
pub fn read_regular(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    open_regular(path)?.take(most.saturating_add(1)).read_to_end(&mut content)?;
    if content.len() as u64 > most {
        let message = format!("it has more than bytes={most}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(content)
}

/// Reads the file called `name` of a model's directory, which becomes a part of the model. A link
/// is followed where it stays in the directory, or in the cache of the Hugging Face hub that the
/// directory is in.
///
/// # Errors
/// There is none, the link leads elsewhere, it is of another kind, or longer than `most` bytes.
pub(super) fn read_own(folder: &Path, name: &str, most: u64) -> io::Result<Vec<u8>> {
    let path = file_name::file_in(folder, name).map_err(io::Error::other)?.canonicalize()?;
    let root = root_of(&folder.canonicalize()?);
    if !path.starts_with(&root) {
        let message = format!("it is a link out of {}; put a copy of the file there", root.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    read_regular(&path, most)
}

/// The directory, or `models--ORG--NAME` of a hub's cache: there `snapshots/REVISION` has links
/// into `blobs`.
fn root_of(folder: &Path) -> PathBuf {
    let snapshots = folder.parent().filter(|parent| parent.ends_with("snapshots"));
    let root = snapshots.and_then(Path::parent).filter(|root| root.join("blobs").is_dir());
    root.unwrap_or(folder).to_owned()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn what_is_no_regular_file_of_the_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (model, elsewhere) = (folder.path().join("model"), folder.path().join("secret"));
        std::fs::create_dir(&model).unwrap();
        std::fs::write(&elsewhere, "secret").unwrap();
        std::fs::write(model.join("vocab.json"), "{}").unwrap();
        mkfifo(&model.join("fifo"), Mode::S_IRWXU).unwrap();
        symlink("/dev/zero", model.join("zero")).unwrap();
        symlink(&elsewhere, model.join("merges.txt")).unwrap();
        symlink("vocab.json", model.join("link.json")).unwrap();
        for hostile in ["fifo", "zero", "merges.txt", "../secret", "none", "."] {
            assert!(read_own(&model, hostile, 10).is_err(), "{hostile}");
        }
        for file in ["vocab.json", "link.json"] {
            assert_eq!(read_own(&model, file, 10).unwrap(), b"{}");
        }
        assert!(read_own(&model, "vocab.json", 1).unwrap_err().to_string().contains("bytes=1"));
    }

    #[test]
    fn a_link_into_the_hubs_own_cache_is_followed() {
        let cache = tempfile::tempdir().unwrap();
        let (blobs, snapshot) = (cache.path().join("m/blobs"), cache.path().join("m/snapshots/abc"));
        std::fs::create_dir_all(&blobs).unwrap();
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::write(blobs.join("1"), "x").unwrap();
        std::fs::write(cache.path().join("other"), "x").unwrap();
        symlink("../../blobs/1", snapshot.join("merges.txt")).unwrap();
        symlink("../../../other", snapshot.join("vocab.json")).unwrap();
        assert_eq!(read_own(&snapshot, "merges.txt", 10).unwrap(), b"x");
        assert!(read_own(&snapshot, "vocab.json", 10).is_err());
    }
}
