//! A folder as one layer: a tar within gzip, its entries in the order of their names, so that the same
//! files make the same bytes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;
use tar::{Builder, EntryType, Header};

/// The bits of a mode that let a program run as somebody else.
const SET_ID: u32 = 0o6000;

pub(super) fn folder(at: &Path) -> Result<Vec<u8>> {
    let mut to = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    put(&mut to, at, Path::new(""))?;
    Ok(to.into_inner()?.finish()?)
}

fn put<W: Write>(to: &mut Builder<W>, at: &Path, within: &Path) -> Result<()> {
    let mut names: Vec<OsString> =
        fs::read_dir(at)?.map(|found| Ok(found?.file_name())).collect::<std::io::Result<_>>()?;
    names.sort();
    for name in names {
        let (path, name) = (at.join(&name), within.join(&name));
        let found = fs::symlink_metadata(&path)?;
        entry(to, &path, &name, &found).with_context(|| format!("failed to pack {}", name.display()))?;
        if found.is_dir() {
            put(to, &path, &name)?;
        }
    }
    Ok(())
}

fn entry<W: Write>(to: &mut Builder<W>, path: &Path, name: &Path, found: &fs::Metadata) -> Result<()> {
    let kind = found.file_type();
    let mut header = Header::new_gnu();
    header.set_mode(found.mode() & 0o1777);
    header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
    header.set_size(0);
    if kind.is_dir() {
        header.set_entry_type(EntryType::Directory);
        to.append_data(&mut header, name, std::io::empty())?;
    } else if kind.is_symlink() {
        header.set_entry_type(EntryType::Symlink);
        to.append_link(&mut header, name, fs::read_link(path)?)?;
    } else if kind.is_file() {
        if found.mode() & SET_ID != 0 {
            bail!("it is setuid or setgid, which no sandbox honours: chmod ug-s");
        }
        header.set_entry_type(EntryType::Regular);
        let file = File::open(path)?;
        let bytes = file.metadata()?.len();
        regular(to, &mut header, name, file, bytes)?;
    } else {
        let what = if kind.is_fifo() || kind.is_socket() { "a pipe or a socket" } else { "a device" };
        bail!("it is {what}, and an image has files, folders and symlinks alone: remove it");
    }
    Ok(())
}

/// Appends `bytes` of a file. The header has its length, so that a layer with less could not be
/// unpacked.
fn regular<W: Write>(
    to: &mut Builder<W>,
    header: &mut Header,
    name: &Path,
    file: File,
    bytes: u64,
) -> Result<()> {
    header.set_size(bytes);
    let mut content = file.take(bytes);
    to.append_data(header, name, &mut content)?;
    let missing = content.limit();
    if missing > 0 {
        bail!("it lost {missing} of its {bytes} bytes meanwhile: push the folder when nothing writes to it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_shrinks_while_it_is_packed_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows");
        fs::write(&path, "0123456789").expect("written");
        let pack = |bytes| {
            let mut to = Builder::new(Vec::new());
            let mut header = Header::new_gnu();
            header.set_entry_type(EntryType::Regular);
            let file = File::open(&path).expect("a file");
            regular(&mut to, &mut header, Path::new("rows"), file, bytes).map_err(|error| error.to_string())
        };
        assert_eq!(pack(10), Ok(()));
        // One that grows is packed as it was.
        assert_eq!(pack(7), Ok(()));
        fs::write(&path, "0123").expect("written");
        let error = pack(10).expect_err("six bytes are gone");
        assert!(error.contains("lost 6 of its 10 bytes"), "{error}");
    }
}
