//! A layer as one stream, tar within zstd, and back. Names follow OCI's layers: `.wh.NAME` says that
//! NAME of the layers below is not there, `.wh..wh..opq` that nothing of a folder below is. Entries
//! stand in the order of their names, so that the same files make the same bytes.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, FileTimes, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::live::LAYER_BYTES;
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::stat::{Mode, SFlag, mknod};
use nix::unistd::{chdir, chroot, mkfifo};
use rustix::fs::{XattrFlags, lgetxattr, lsetxattr};
use tar::{Builder, EntryType, Header};

use super::LAYERS;
use super::enter::join_keeper;

/// How much zstd tries: of its levels up to 3 cost little time.
const LEVEL: i32 = 3;
/// Address space of a process that unpacks: zstd's largest window has 128 MiB.
const MEMORY_BYTES: u64 = 1024 * 1024 * 1024;
/// By what the kernel marks a folder that covers those below.
pub(super) const OPAQUE: &str = "user.overlay.opaque";
/// By what a packed layer does.
pub(super) const OPAQUE_NAME: &str = ".wh..wh..opq";
/// Before the name of what is not there.
pub(super) const GONE: &str = ".wh.";

/// Writes a layer of this keeper to the standard output.
///
/// # Errors
/// The layer cannot be read or is larger than any that is unpacked, or the output cannot be written.
pub(crate) fn pack(keeper: &str, layer: &str) -> anyhow::Result<()> {
    enter(keeper, layer)?;
    // Before the first byte is written: holes cost who wrote them nothing.
    let mut left = LAYER_BYTES;
    measure(Path::new("/"), &mut left, &mut HashSet::new())?;
    let mut output = zstd::Encoder::new(std::io::stdout().lock(), LEVEL)?;
    let mut packer = Packer { to: Builder::new(&mut output), links: HashMap::new() };
    packer.folder(Path::new("/"))?;
    packer.to.finish()?;
    drop(packer);
    output.finish()?.flush()?;
    Ok(())
}

/// Fills a layer of this keeper from the standard input.
///
/// # Errors
/// The input is no packed layer, or has more than the layer may have.
pub(crate) fn unpack(keeper: &str, layer: &str) -> anyhow::Result<()> {
    enter(keeper, layer)?;
    bound_memory()?;
    let input = zstd::Decoder::new(std::io::stdin().lock())?;
    let mut archive = tar::Archive::new(input);
    for entry in archive.entries()? {
        put(&mut entry?)?;
    }
    // To the very end, so that who sends it can check all of it.
    std::io::copy(&mut archive.into_inner(), &mut std::io::sink())?;
    Ok(())
}

/// A layer that others packed may have a long name without end, which tar has in memory.
pub(super) fn bound_memory() -> anyhow::Result<()> {
    setrlimit(Resource::RLIMIT_AS, MEMORY_BYTES, MEMORY_BYTES).context("failed to bound memory")
}

/// Makes the layer the root of this process: nothing in it, and no stream, leads out.
fn enter(keeper: &str, layer: &str) -> anyhow::Result<()> {
    let layer: u64 = layer.parse().context("failed to read a layer's number")?;
    join_keeper(keeper)?;
    chroot(Path::new(LAYERS).join(format!("{layer}/u")).as_path()).context("failed to enter the layer")?;
    chdir("/")?;
    Ok(())
}

/// Takes the lengths of all files in a folder off what is `left`. A file of several names counts once.
fn measure(at: &Path, left: &mut u64, links: &mut HashSet<u64>) -> anyhow::Result<()> {
    for found in fs::read_dir(at)? {
        let path = found?.path();
        let found = fs::symlink_metadata(&path)?;
        if found.is_dir() {
            measure(&path, left, links)?;
        } else if found.is_file() && (found.nlink() == 1 || links.insert(found.ino())) {
            let rest = left.checked_sub(found.len());
            *left = rest.with_context(|| {
                format!(
                    "with {} the files have more than {LAYER_BYTES} bytes, holes among them; remove some, \
                     or their holes",
                    path.display()
                )
            })?;
        }
    }
    Ok(())
}

struct Packer<'w, W: Write> {
    to: Builder<&'w mut W>,
    /// Files with several names, by their number: the first name.
    links: HashMap<u64, PathBuf>,
}

impl<W: Write> Packer<'_, W> {
    /// Everything in a folder. `at` begins with `/`, which names do not.
    fn folder(&mut self, at: &Path) -> anyhow::Result<()> {
        let mut names: Vec<OsString> =
            fs::read_dir(at)?.map(|found| Ok(found?.file_name())).collect::<std::io::Result<_>>()?;
        names.sort();
        for name in names {
            let path = at.join(&name);
            let found = fs::symlink_metadata(&path)?;
            self.entry(&path, &found).with_context(|| format!("failed to pack {}", path.display()))?;
            if found.is_dir() {
                self.folder(&path)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, found: &fs::Metadata) -> anyhow::Result<()> {
        let name = path.strip_prefix("/")?;
        let kind = found.file_type();
        let mut header = Header::new_gnu();
        header.set_mode(found.permissions().mode() & 0o7777);
        header.set_mtime(u64::try_from(found.mtime()).unwrap_or(0));
        header.set_size(0);
        if kind.is_char_device() && found.rdev() == 0 {
            header.set_entry_type(EntryType::Regular);
            let gone = [GONE.as_bytes(), name.file_name().unwrap_or_default().as_bytes()].concat();
            let gone = name.with_file_name(OsStr::from_bytes(&gone));
            self.to.append_data(&mut header, gone, std::io::empty())?;
        } else if kind.is_dir() {
            header.set_entry_type(EntryType::Directory);
            self.to.append_data(&mut header, name, std::io::empty())?;
            let mut value = [0; 8];
            if lgetxattr(path, OPAQUE, &mut value).is_ok_and(|n| value[..n] == *b"y") {
                header.set_entry_type(EntryType::Regular);
                self.to.append_data(&mut header, name.join(OPAQUE_NAME), std::io::empty())?;
            }
        } else if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            self.to.append_link(&mut header, name, fs::read_link(path)?)?;
        } else if kind.is_fifo() {
            header.set_entry_type(EntryType::Fifo);
            self.to.append_data(&mut header, name, std::io::empty())?;
        } else if kind.is_file() {
            self.file(path, name, found, header)?;
        }
        // A socket without its process leads nowhere.
        Ok(())
    }

    fn file(
        &mut self,
        path: &Path,
        name: &Path,
        found: &fs::Metadata,
        mut header: Header,
    ) -> anyhow::Result<()> {
        if found.nlink() > 1 {
            if let Some(first) = self.links.get(&found.ino()) {
                header.set_entry_type(EntryType::Link);
                self.to.append_link(&mut header, name, first)?;
                return Ok(());
            }
            self.links.insert(found.ino(), name.to_owned());
        }
        header.set_entry_type(EntryType::Regular);
        header.set_size(found.len());
        let mut content = File::open(path)?.take(found.len());
        self.to.append_data(&mut header, name, &mut content)?;
        ensure!(content.limit() == 0, "it became shorter meanwhile");
        Ok(())
    }
}

/// Writes one entry of a stream. This process's root is the layer: a name or symlink that would lead
/// elsewhere does not, and yet plain names alone are taken.
fn put(entry: &mut tar::Entry<'_, impl Read>) -> anyhow::Result<()> {
    let name = entry.path()?.into_owned();
    let plain = name.components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(plain && name.file_name().is_some(), "the layer has an entry {}", name.display());
    let path = Path::new("/").join(&name);
    let named = name.file_name().unwrap_or_default().as_bytes();
    if named == OPAQUE_NAME.as_bytes() {
        lsetxattr(path.parent().unwrap_or(&path), OPAQUE, b"y", XattrFlags::empty())?;
    } else if let Some(gone) = named.strip_prefix(GONE.as_bytes()) {
        let at = path.with_file_name(OsString::from_vec(gone.to_vec()));
        mknod(&at, SFlag::S_IFCHR, Mode::empty(), 0)?;
    } else {
        write(entry, &path).with_context(|| format!("failed to unpack {}", name.display()))?;
    }
    Ok(())
}

fn write(entry: &mut tar::Entry<'_, impl Read>, path: &Path) -> anyhow::Result<()> {
    let header = entry.header();
    let (mode, changed) = (Permissions::from_mode(header.mode()? & 0o7777), header.mtime()?);
    match header.entry_type() {
        EntryType::Directory => {
            fs::create_dir_all(path)?;
            fs::set_permissions(path, mode)?;
        }
        EntryType::Symlink => symlink(entry.link_name()?.context("a symlink leads somewhere")?, path)?,
        EntryType::Link => {
            let first = entry.link_name()?.context("a link leads somewhere")?;
            fs::hard_link(Path::new("/").join(first), path)?;
        }
        EntryType::Fifo => mkfifo(path, Mode::from_bits_truncate(header.mode()?))?,
        EntryType::Regular => {
            let mut file = File::create_new(path)?;
            std::io::copy(entry, &mut file)?;
            file.set_permissions(mode)?;
            file.set_times(FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_secs(changed)))?;
        }
        other => bail!("the layer has an entry of kind {other:?}"),
    }
    Ok(())
}
