//! What is seen from within: the system's programs and libraries, to read; a folder for the run, in
//! memory and bounded; a few devices without content. No home folders, no `/proc`, no
//! configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use millrace_sandbox::Job;
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{chdir, pivot_root};

/// This program, from within.
pub(crate) const PROGRAM: &str = "/sandbox";
/// Where the only places to write to are.
pub(crate) const SCRATCH: &str = "/tmp";
/// The run's folder.
pub(crate) const FOLDER: &str = "/tmp/0";
/// What programs are made of.
pub(crate) const SYSTEM: [&str; 6] = ["/usr", "/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache"];
/// Devices without content.
pub(crate) const DEVICES: [&str; 4] = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
/// What to do where namespaces cannot be made.
pub(crate) const NAMESPACES_REMEDY: &str = "failed to enter new namespaces; the machine must let users make \
    them (user.max_user_namespaces > 0, kernel.apparmor_restrict_unprivileged_userns = 0, and a container that \
    permits unshare and mount)";
/// Files of a run at most.
const FILES: u32 = 16_384;
/// Bytes for the tree itself, and for this program where it cannot be shown by a mount.
const TREE_BYTES: u64 = 64 * 1024 * 1024;

/// Builds it, and leaves everything else behind.
///
/// # Errors
/// The machine does not let us, or a folder that may be read is not there.
pub(crate) fn build(job: &Job) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find this program")?;
    step("make mounts private", || {
        mount(none(), "/", none(), MsFlags::MS_REC | MsFlags::MS_PRIVATE, none())
    })?;
    // First the place in which the new tree is built: over /tmp, which every system has, with the
    // old one beside it.
    memory("/tmp", TREE_BYTES, 64, 0o755)?;
    fs::create_dir("/tmp/old")?;
    step("leave the old root", || pivot_root("/tmp", "/tmp/old"))?;
    chdir("/")?;
    fs::create_dir("/new")?;
    memory("/new", TREE_BYTES, 4_096, 0o755)?;
    let system = SYSTEM.iter().map(PathBuf::from).filter(|path| Path::new("/old").join(strip(path)).exists());
    for path in system.chain(job.read.iter().cloned()) {
        show(&path).with_context(|| format!("failed to show {}", path.display()))?;
    }
    for device in DEVICES {
        show_file(&Path::new("/old").join(strip(device.as_ref())), &new(device.as_ref()))
            .with_context(|| format!("failed to show {device}"))?;
    }
    own_program(&program, &new(PROGRAM.as_ref())).context("failed to show this program")?;
    fs::create_dir(new(SCRATCH.as_ref()))?;
    // What the job brings has room besides what the run may write.
    let folder = new(FOLDER.as_ref());
    fs::create_dir(&folder)?;
    memory(&folder, job.limits.disk_bytes.saturating_add(job.text_bytes()), FILES, 0o700)?;
    step("leave the old mounts", || umount2("/old", MntFlags::MNT_DETACH))?;
    chdir("/new")?;
    step("enter the new root", || pivot_root(".", "."))?;
    step("leave the root before", || umount2(".", MntFlags::MNT_DETACH))?;
    chdir("/")?;
    let flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    step("close the root", || {
        mount(none(), "/", none(), flags | MsFlags::MS_NOSUID | MsFlags::MS_NODEV, none())
    })
}

pub(crate) const fn none() -> Option<&'static str> {
    None
}

pub(crate) fn step(what: &str, call: impl FnOnce() -> nix::Result<()>) -> anyhow::Result<()> {
    call().with_context(|| format!("failed to {what}"))
}

pub(crate) fn strip(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

fn new(path: &Path) -> PathBuf {
    Path::new("/new").join(strip(path))
}

/// A file system in memory.
pub(crate) fn memory(at: impl AsRef<Path>, bytes: u64, files: u32, mode: u32) -> anyhow::Result<()> {
    let options = format!("size={bytes},nr_inodes={files},mode={mode:o}");
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    step("mount memory", || mount(Some("tmpfs"), at.as_ref(), Some("tmpfs"), flags, Some(options.as_str())))
}

/// A folder, file or symlink of the old root, at the same place in the new one.
fn show(path: &Path) -> anyhow::Result<()> {
    let (old, new) = (Path::new("/old").join(strip(path)), new(path));
    if let Some(parent) = new.parent() {
        fs::create_dir_all(parent)?;
    }
    let kind = fs::symlink_metadata(&old)?.file_type();
    if kind.is_symlink() {
        std::os::unix::fs::symlink(fs::read_link(&old)?, &new)?;
        Ok(())
    } else if kind.is_dir() {
        fs::create_dir_all(&new)?;
        bind(&old, &new)
    } else {
        show_file(&old, &new)
    }
}

fn show_file(old: &Path, new: &Path) -> anyhow::Result<()> {
    if let Some(parent) = new.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(new, "")?;
    bind(old, new)
}

/// Shows `old` at `new`, to read. Devices stay writable: there is nothing in them.
pub(crate) fn bind(old: &Path, new: &Path) -> anyhow::Result<()> {
    let bound = match mount(Some(old), new, none(), MsFlags::MS_BIND, none()) {
        // Something is mounted within it, which may not be uncovered.
        Err(Errno::EINVAL) => mount(Some(old), new, none(), MsFlags::MS_BIND | MsFlags::MS_REC, none()),
        bound => bound,
    };
    bound.context("failed to bind")?;
    let mut flags = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID;
    // What the mount was made with may not be taken back.
    let before = statvfs(new).context("failed to ask for the mount's flags")?.flags();
    for (was, keep) in [
        (FsFlags::ST_NODEV, MsFlags::MS_NODEV),
        (FsFlags::ST_NOEXEC, MsFlags::MS_NOEXEC),
        (FsFlags::ST_NOATIME, MsFlags::MS_NOATIME),
        (FsFlags::ST_NODIRATIME, MsFlags::MS_NODIRATIME),
        (FsFlags::ST_RELATIME, MsFlags::MS_RELATIME),
    ] {
        if before.contains(was) {
            flags |= keep;
        }
    }
    mount(none(), new, none(), flags, none()).context("failed to bind for reading alone")
}

/// This program: by a mount, or where its folder is closed to us, by a copy.
pub(crate) fn own_program(program: &Path, to: &Path) -> anyhow::Result<()> {
    if show_file(&Path::new("/old").join(strip(program)), to).is_ok() {
        return Ok(());
    }
    fs::write(to, fs::read("/old/proc/self/exe")?)?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o555))?;
    Ok(())
}
