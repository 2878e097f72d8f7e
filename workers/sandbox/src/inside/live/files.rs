//! Files of a long-lived sandbox, read and written for the owner by the first process within: what a
//! path leads to is decided behind the walls.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use millrace_sandbox::live::wire::{FileAnswer, FileAsk, PIECE_BYTES};
use millrace_sandbox::live::{Entry, Fault, FileKind};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// Entries of a folder that are told.
const ENTRIES: usize = 10_000;
/// Bytes of their names, and of where symlinks lead, that are told: half of a frame.
const LISTED_BYTES: usize = 2 * 1024 * 1024;

/// Does what is asked.
pub(crate) fn answer(ask: &FileAsk) -> Result<FileAnswer, Fault> {
    match ask {
        FileAsk::Read { path, offset, most } => {
            at(path, "read", |path| read(path, *offset, *most)).map(FileAnswer::Bytes)
        }
        FileAsk::Write { path, bytes, append } => {
            at(path, "write", |path| write(path, bytes, *append)).map(|()| FileAnswer::Done)
        }
        FileAsk::Remove { path } => at(path, "remove", remove).map(|()| FileAnswer::Done),
        FileAsk::List { path } => at(path, "list", list).map(FileAnswer::Entries),
        FileAsk::Look { path } => at(path, "find", |path| Ok(FileAnswer::Entries(vec![entry(path)?]))),
        FileAsk::MakeFolder { path } => at(path, "make", |path| {
            fs::create_dir_all(path)?;
            Ok(FileAnswer::Done)
        }),
        FileAsk::Move { from, to } => at(from, "move", |from| {
            absolute(to)?;
            make_parent(Path::new(to))?;
            fs::rename(from, to)?;
            Ok(FileAnswer::Done)
        }),
        // The first process has stopped or started the others.
        FileAsk::Freeze | FileAsk::Thaw => Ok(FileAnswer::Done),
    }
}

fn at<T>(path: &str, what: &str, done: impl FnOnce(&Path) -> std::io::Result<T>) -> Result<T, Fault> {
    let done = absolute(path).and_then(|()| done(Path::new(path)));
    done.map_err(|error| Fault {
        what: what.to_owned(),
        path: path.to_owned(),
        reason: error.to_string(),
        missing: error.kind() == ErrorKind::NotFound,
    })
}

fn absolute(path: &str) -> std::io::Result<()> {
    let fault = if path.contains('\0') {
        "a path has no NUL byte"
    } else if path.starts_with('/') {
        return Ok(());
    } else {
        "name it from /"
    };
    Err(std::io::Error::new(ErrorKind::InvalidInput, fault))
}

fn make_parent(path: &Path) -> std::io::Result<()> {
    path.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Opens a file and nothing else: a pipe would keep us waiting, and what is in /proc under this
/// process's eyes is not the sandbox's.
fn open(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    let in_proc = fstatfs(&file).is_ok_and(|found| found.filesystem_type() == PROC_SUPER_MAGIC);
    if file.metadata()?.is_file() && !in_proc {
        return Ok(file);
    }
    Err(std::io::Error::new(ErrorKind::InvalidInput, "it is no regular file"))
}

fn read(path: &Path, offset: u64, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = open(path, OpenOptions::new().read(true))?;
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(most.min(PIECE_BYTES as u64)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn write(path: &Path, bytes: &[u8], append: bool) -> std::io::Result<()> {
    make_parent(path)?;
    // What is there is cut off once it is known to be a file.
    let mut file = open(path, OpenOptions::new().create(true).append(append).write(true))?;
    if !append {
        file.set_len(0)?;
    }
    file.write_all(bytes)
}

fn remove(path: &Path) -> std::io::Result<()> {
    if fs::symlink_metadata(path)?.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}

fn list(path: &Path) -> std::io::Result<Vec<Entry>> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for found in fs::read_dir(path)? {
        if entries.len() == ENTRIES {
            return Err(std::io::Error::other(format!("it has more than {ENTRIES} entries")));
        }
        // One that has gone meanwhile is left out.
        let Ok(found) = entry(&found?.path()) else { continue };
        bytes += found.name.len() + found.leads_to.as_ref().map_or(0, String::len);
        if bytes > LISTED_BYTES {
            let many =
                format!("its names and symlinks have more than {LISTED_BYTES} bytes; list it by a command");
            return Err(std::io::Error::other(many));
        }
        entries.push(found);
    }
    entries.sort_by(|one: &Entry, other| one.name.cmp(&other.name));
    Ok(entries)
}

fn entry(path: &Path) -> std::io::Result<Entry> {
    let found = fs::symlink_metadata(path)?;
    let kind = found.file_type();
    let kind = match (kind.is_file(), kind.is_dir(), kind.is_symlink()) {
        (true, ..) => FileKind::File,
        (_, true, _) => FileKind::Folder,
        (_, _, true) => FileKind::Symlink,
        (false, false, false) => FileKind::Other,
    };
    Ok(Entry {
        name: path.file_name().map_or_else(|| "/".to_owned(), |name| name.to_string_lossy().into_owned()),
        kind,
        bytes: found.len(),
        mode: found.permissions().mode() & 0o7777,
        changed_s: found.mtime(),
        leads_to: fs::read_link(path).ok().map(|to| to.to_string_lossy().into_owned()),
    })
}
