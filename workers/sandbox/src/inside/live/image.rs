//! A layer of an image, as OCI has it, into a folder of this machine: tar, by itself or within gzip or
//! zstd, from somebody whom nobody trusts. The folder is this process's root, so that nothing leads
//! out of it, and yet an entry that would is refused, and with it the layer. Whiteouts become what
//! overlay file systems know: devices 0/0, and folders that are marked.
//!
//! Everything belongs to the user of sandboxes, who may read all of it.

use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use flate2::bufread::MultiGzDecoder;
use millrace_sandbox::live::wire::PATH_BYTES;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::{chdir, chroot, mkfifo};
use rustix::fs::{XattrFlags, lsetxattr};
use tar::{Archive, Entry, EntryType};

use super::keep;
use super::pack::{GONE, OPAQUE, OPAQUE_NAME, bound_memory};
use crate::inside::launch::{close_others, leave_root};
use crate::inside::root;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes of the headers of an entry at most, with the long names in them: tar has them in memory.
const HEADER_BYTES: u64 = 1024 * 1024;
/// The bits of a mode by which a program runs as somebody else.
const SET_ID: u32 = 0o6000;

/// Fills a folder from the standard input.
///
/// # Errors
/// The input is no layer, has what a layer may not have, or more than these bounds.
pub(crate) fn unpack(folder: &str, bytes: &str, files: &str) -> anyhow::Result<()> {
    let bytes: u64 = bytes.parse().context("failed to read the bound of bytes")?;
    let files: u64 = files.parse().context("failed to read the bound of files")?;
    close_others().context("failed to close what is open")?;
    chdir(folder).with_context(|| format!("failed to enter {folder}"))?;
    leave_root().context("failed to give up the rights of root")?;
    keep::enter().context(root::NAMESPACES_REMEDY)?;
    chroot(".").with_context(|| format!("failed to enter {folder}; it must be open to all users"))?;
    chdir("/")?;
    bound(bytes)?;
    let mut input = BufReader::new(io::stdin().lock());
    let form = input.fill_buf()?;
    let reader: Box<dyn Read + '_> = if form.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(input))
    } else if form.starts_with(&ZSTD) {
        Box::new(zstd::Decoder::with_buffer(input)?)
    } else {
        Box::new(input)
    };
    let headers = Rc::default();
    let from = Bounded { from: reader, left: bytes, most: bytes, headers: Rc::clone(&headers) };
    let mut archive = Archive::new(from);
    unpack_all(&mut archive, &headers, bytes, files)?;
    // To the very end, so that what is cut is seen.
    io::copy(&mut archive.into_inner(), &mut io::sink()).context("failed to read the layer")?;
    // What is kept is whole after a power cut, too.
    rustix::fs::syncfs(File::open("/")?).context("failed to write the layer")?;
    Ok(())
}

/// Bounds of this process, where those of the layer have a hole.
fn bound(bytes: u64) -> anyhow::Result<()> {
    bound_memory()?;
    setrlimit(Resource::RLIMIT_FSIZE, bytes, bytes).context("failed to bound the size of files")
}

fn unpack_all(
    archive: &mut Archive<impl Read>,
    headers: &Cell<Option<u64>>,
    bytes: u64,
    files: u64,
) -> anyhow::Result<()> {
    let (mut left, mut count) = (bytes, 0);
    let mut entries = archive.entries()?;
    loop {
        headers.set(Some(HEADER_BYTES));
        let next = entries.next();
        headers.set(None);
        let Some(entry) = next else { return Ok(()) };
        let mut entry = entry.context("failed to read the layer")?;
        let name = entry.path()?.into_owned();
        let length = name.as_os_str().len();
        ensure!(length <= PATH_BYTES, "an entry's name has {length} bytes; a path has at most {PATH_BYTES}");
        let done = take_off(&mut left, entry.size(), bytes).and_then(|()| put(&mut entry, &name));
        done.with_context(|| format!("the layer's entry {:?} is refused", name.display()))?;
        // What of it went into no file: the next one's headers begin behind it.
        io::copy(&mut entry, &mut io::sink()).context("failed to read the layer")?;
        count += 1;
        ensure!(count <= files, "the layer has more than {files} entries");
    }
}

/// An entry may be much more than its part of the stream: holes of a sparse file are not in it.
fn take_off(left: &mut u64, size: u64, most: u64) -> anyhow::Result<()> {
    let rest = left.checked_sub(size);
    *left = rest.with_context(|| format!("with its {size} bytes the layer has more than {most} bytes"))?;
    Ok(())
}

/// What fails beyond a bound: a small layer may be much once it is unpacked.
struct Bounded<R> {
    from: R,
    left: u64,
    most: u64,
    /// Bytes that are left for headers, while they are read.
    headers: Rc<Cell<Option<u64>>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let n = self.from.read(into)?;
        self.left = self
            .left
            .checked_sub(n as u64)
            .ok_or_else(|| io::Error::other(format!("the layer has more than {} bytes", self.most)))?;
        if let Some(left) = self.headers.get() {
            let left = left.checked_sub(n as u64).ok_or_else(|| {
                io::Error::other(format!("an entry's headers have more than {HEADER_BYTES} bytes"))
            })?;
            self.headers.set(Some(left));
        }
        Ok(n)
    }
}

fn put(entry: &mut Entry<'_, impl Read>, name: &Path) -> anyhow::Result<()> {
    if entry.header().entry_type() == EntryType::XGlobalHeader {
        return Ok(());
    }
    let at = plain(name)?;
    let Some(last) = at.file_name() else { return Ok(()) };
    folders(&at)?;
    if last == OPAQUE_NAME {
        return cover(at.parent().unwrap_or(&at));
    }
    match last.as_bytes().strip_prefix(GONE.as_bytes()) {
        Some(gone) => remove(&at, OsStr::from_bytes(gone)),
        None => write(entry, &at),
    }
}

/// A name as a path below the root. None that climbs or begins elsewhere is taken.
fn plain(name: &Path) -> anyhow::Result<PathBuf> {
    let mut at = PathBuf::from("/");
    for part in name.components() {
        match part {
            Component::Normal(part) => at.push(part),
            Component::CurDir => {}
            Component::ParentDir => bail!("its name climbs by `..`; names begin at the image's root"),
            Component::RootDir | Component::Prefix(_) => {
                bail!("its name begins with `/`; names begin at the image's root")
            }
        }
    }
    Ok(at)
}

fn look(at: &Path) -> io::Result<Option<Metadata>> {
    match fs::symlink_metadata(at) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_gone(found: &Metadata) -> bool {
    found.file_type().is_char_device() && found.rdev() == 0
}

/// Makes the folders above, and refuses a way through a symlink.
fn folders(at: &Path) -> anyhow::Result<()> {
    let mut above: Vec<&Path> = at.ancestors().skip(1).collect();
    above.pop();
    for folder in above.into_iter().rev() {
        match look(folder)? {
            None => folder_at(folder, false)?,
            Some(found) if found.is_dir() => {}
            Some(found) if is_gone(&found) => folder_at(folder, true)?,
            Some(found) if found.is_symlink() => {
                bail!("its name leads through the symlink {}; name the place itself", folder.display())
            }
            Some(_) => bail!("its name leads through {}, which is no folder", folder.display()),
        }
    }
    Ok(())
}

/// A new folder, in place of a whiteout where there is one: then it covers what is below.
fn folder_at(at: &Path, was_gone: bool) -> anyhow::Result<()> {
    if was_gone {
        fs::remove_file(at)?;
    }
    fs::create_dir(at)?;
    if was_gone { cover(at) } else { Ok(()) }
}

/// Nothing of this folder in the layers below is there.
fn cover(folder: &Path) -> anyhow::Result<()> {
    lsetxattr(folder, OPAQUE, b"y", XattrFlags::empty())
        .context("failed to mark a folder; the cache's file system must have extended attributes")
}

/// What the layers below have under this name is not there. This layer's own is.
fn remove(at: &Path, name: &OsStr) -> anyhow::Result<()> {
    ensure!(!matches!(name.as_bytes(), b"" | b"." | b".."), "it removes no name");
    let at = at.with_file_name(name);
    match look(&at)? {
        Some(found) if found.is_dir() => cover(&at),
        Some(_) => Ok(()),
        None => mknod(&at, SFlag::S_IFCHR, Mode::empty(), 0)
            .context("failed to write a whiteout; the cache's file system may not be an overlay itself"),
    }
}

fn write(entry: &mut Entry<'_, impl Read>, at: &Path) -> anyhow::Result<()> {
    let header = entry.header();
    let (kind, mode, changed) = (header.entry_type(), header.mode()?, header.mtime()?);
    let found = look(at)?;
    if kind == EntryType::Directory {
        match found {
            Some(found) if found.is_dir() => {}
            Some(found) if is_gone(&found) => folder_at(at, true)?,
            Some(_) => bail!("it is a folder, and the layer has a file of this name"),
            None => folder_at(at, false)?,
        }
        // Whoever owns a folder may go into it: else nobody could remove it.
        return Ok(fs::set_permissions(at, Permissions::from_mode(mode & 0o1777 | 0o700))?);
    }
    if let Some(found) = found {
        ensure!(!found.is_dir(), "it is a file, and the layer has a folder of this name");
        fs::remove_file(at)?;
    }
    match kind {
        EntryType::Symlink => {
            let to = entry.link_name()?.context("it is a symlink to nowhere")?;
            Ok(symlink(to, at)?)
        }
        EntryType::Link => link(&entry.link_name()?.context("it is a hard link to nowhere")?, at),
        EntryType::Fifo => Ok(mkfifo(at, Mode::from_bits_truncate(mode & 0o777))?),
        EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
            ensure!(mode & SET_ID == 0, "it is setuid or setgid, which no sandbox honours: chmod ug-s");
            let mut file = File::create_new(at)?;
            io::copy(entry, &mut file)?;
            file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(changed)))?;
            Ok(file.set_permissions(Permissions::from_mode(mode & 0o777 | 0o400))?)
        }
        EntryType::Char | EntryType::Block => bail!("it is a device; a sandbox has its own"),
        other => bail!("it is of the kind {other:?}"),
    }
}

/// A second name of a file of this layer.
fn link(to: &Path, at: &Path) -> anyhow::Result<()> {
    let first = plain(to).with_context(|| format!("it is a hard link to {:?}", to.display()))?;
    let whole: OsString = first.clone().into_os_string();
    for folder in first.ancestors().skip(1) {
        let is_folder = look(folder)?.is_some_and(|found| found.is_dir());
        ensure!(is_folder, "it is a hard link to {whole:?}, which is not in the layer");
    }
    let is_file = look(&first)?.is_some_and(|found| found.is_file());
    ensure!(is_file, "it is a hard link to {whole:?}, which is no file of the layer");
    Ok(fs::hard_link(&first, at)?)
}
