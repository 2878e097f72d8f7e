//! The first process within, as long as it has rights over the sandbox's own namespaces: waits for
//! what the sandbox shall be, builds what is seen, leaves everything else behind, and becomes `tend`
//! in a namespace of users in which it has no rights.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use millrace_sandbox::live::Wall;
use millrace_sandbox::live::wire::{self, Build, FromInit};
use nix::fcntl::{OFlag, open, openat};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::unistd::{chdir, pivot_root};

use super::{HOME, LAYERS, LIBRARIES, LOADER, program, tend};
use crate::inside::launch::WITHIN;
use crate::inside::root::{self, DEVICES, SYSTEM, bind, memory, none, step, strip};

/// Besides `SYSTEM`: where links of the system's programs lead, and the certificates they know.
const SYSTEM_SETTINGS: [&str; 2] = ["/etc/alternatives", "/etc/ssl/certs"];
/// Folders of every sandbox, with who may do what.
const FOLDERS: [(&str, u32); 9] = [
    ("/dev", 0o755),
    ("/etc", 0o755),
    ("/home", 0o755),
    (HOME, 0o755),
    ("/proc", 0o755),
    ("/run", 0o755),
    ("/tmp", 0o1777),
    ("/var", 0o755),
    ("/var/tmp", 0o1777),
];
/// Files of every sandbox.
const FILES: [(&str, &str); 5] = [
    ("/etc/passwd", "root:x:0:0:root:/:/usr/sbin/nologin\nuser:x:1000:1000::/home/user:/bin/bash\n"),
    ("/etc/group", "root:x:0:\nuser:x:1000:\n"),
    ("/etc/hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("/etc/resolv.conf", ""),
];
/// Bytes of `/dev`: this program, where it has to be copied.
const DEV_BYTES: u64 = 64 * 1024 * 1024;
/// Symlinks of every `/dev`.
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Builds a sandbox and becomes its first process for good.
///
/// # Errors
/// The connection ended.
pub(crate) fn run() -> anyhow::Result<()> {
    prctl::set_pdeathsig(Signal::SIGKILL).context("failed to bind this life to its parent's")?;
    let mut owner = tend::owner()?;
    wire::write(&mut owner, &FromInit::Warm)?;
    let build: Build = wire::read(&mut owner)?;
    let Err(error) = become_tend(&build);
    let _ = wire::write(&mut owner, &FromInit::Failed(format!("{error:#}")));
    Err(error)
}

fn become_tend(build: &Build) -> anyhow::Result<std::convert::Infallible> {
    let own = open("/old/proc/self", OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())
        .context("failed to find this process in /proc")?;
    files(build)?;
    devices(build).context("failed to build /dev")?;
    let mut lacks = Vec::new();
    if let Err(error) = process_table() {
        lack(build, Wall::Proc, &error)?;
        lacks.push("proc");
    }
    leave_machine()?;
    unshare(CloneFlags::CLONE_NEWUSER).context("failed to enter a namespace of users within")?;
    map(&own, "setgroups", "deny")?;
    map(&own, "uid_map", &format!("{WITHIN} 0 1"))?;
    map(&own, "gid_map", &format!("{WITHIN} 0 1"))?;
    drop(own);
    // Not being root in there it loses all rights by this.
    let error = program().arg(crate::TEND).args(lacks).env_clear().exec();
    Err(error).context("failed to start the first process within")
}

/// A wall is missing: goes on only where the caller does without.
pub(crate) fn lack(build: &Build, wall: Wall, error: &anyhow::Error) -> anyhow::Result<()> {
    if build.spec.needs.contains(&wall) {
        bail!("{wall:?} does not stand: {error:#}; a sandbox does without by leaving it out of `needs`");
    }
    Ok(())
}

fn map(own: &OwnedFd, name: &str, text: &str) -> anyhow::Result<()> {
    let file = openat(own.as_fd(), name, OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?;
    nix::unistd::write(&file, text.as_bytes()).with_context(|| format!("failed to write {name}"))?;
    Ok(())
}

/// The layers, and what is shown of the machine.
fn files(build: &Build) -> anyhow::Result<()> {
    layers(build)?;
    for (folder, mode) in FOLDERS {
        let at = place(Path::new(folder), true)?;
        let _ = fs::set_permissions(&at, fs::Permissions::from_mode(mode));
    }
    for (file, text) in FILES {
        let at = beneath(Path::new(file))?;
        if fs::symlink_metadata(&at).is_err() {
            fs::write(&at, text).with_context(|| format!("failed to write {file}"))?;
        }
    }
    if build.spec.system {
        let there = |path: &&Path| Path::new("/old").join(strip(path)).exists();
        for path in SYSTEM.iter().chain(&SYSTEM_SETTINGS).map(Path::new).filter(there) {
            show(path).with_context(|| format!("failed to show {}", path.display()))?;
        }
    }
    for path in &build.spec.read {
        show(path).with_context(|| {
            format!("failed to show {}; it must exist and be open to all users", path.display())
        })?;
    }
    Ok(())
}

fn layers(build: &Build) -> anyhow::Result<()> {
    let (upper, work) = (format!("{}/u", build.upper), format!("{}/w", build.upper));
    if build.lower.is_empty() {
        let from = Path::new(LAYERS).join(upper);
        return step("show the layer", || mount(Some(&from), "/new", none(), MsFlags::MS_BIND, none()));
    }
    chdir(LAYERS)?;
    let lower: Vec<String> = build.lower.iter().map(|layer| format!("{layer}/u")).collect();
    let options = format!("userxattr,lowerdir={},upperdir={upper},workdir={work}", lower.join(":"));
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let stacked = mount(Some("overlay"), "/new", Some("overlay"), flags, Some(options.as_str()));
    stacked.context(
        "failed to stack layers; overlay for all users is needed (Linux 6.6 for layers in memory)",
    )?;
    chdir("/")?;
    Ok(())
}

/// `path` in the new tree. What lies there may come from a sandbox before, so that no symlink is
/// followed: it would lead to the machine's files.
fn beneath(path: &Path) -> anyhow::Result<PathBuf> {
    let mut at = PathBuf::from("/new");
    let mut parts = strip(path).components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(name) = part else { bail!("{} is no plain path", path.display()) };
        at.push(name);
        if parts.peek().is_some() {
            folder(&at)?;
        }
    }
    if let Ok(found) = fs::symlink_metadata(&at) {
        ensure!(!found.is_symlink(), "the layer has a symlink at {}", path.display());
    }
    Ok(at)
}

/// Makes a folder if there is none.
fn folder(at: &Path) -> anyhow::Result<()> {
    match fs::create_dir(at) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        made => made.with_context(|| format!("failed to make {}", at.display()))?,
    }
    ensure!(fs::symlink_metadata(at)?.is_dir(), "the layer has no folder at {}", at.display());
    Ok(())
}

/// A place to mount at: a folder or an empty file.
fn place(path: &Path, is_folder: bool) -> anyhow::Result<PathBuf> {
    let at = beneath(path)?;
    if is_folder {
        folder(&at)?;
    } else if fs::symlink_metadata(&at).is_err() {
        fs::write(&at, "")?;
    }
    Ok(at)
}

/// A folder, file or symlink of the machine, at the same place in the new tree, to read.
fn show(path: &Path) -> anyhow::Result<()> {
    let old = Path::new("/old").join(strip(path));
    let kind = fs::symlink_metadata(&old)?.file_type();
    if kind.is_symlink() {
        let new = Path::new("/new").join(strip(path));
        if let Some(parent) = path.parent().filter(|parent| parent.parent().is_some()) {
            place(parent, true)?;
        }
        return match symlink(fs::read_link(&old)?, &new) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => Ok(made?),
        };
    }
    bind(&old, &place(path, kind.is_dir())?)
}

fn devices(build: &Build) -> anyhow::Result<()> {
    let bounds = &build.spec.bounds;
    let dev = Path::new("/new/dev");
    memory(dev, DEV_BYTES, 128, 0o755)?;
    let bind_file = |from: &Path, name: &str| -> anyhow::Result<()> {
        fs::write(dev.join(name), "")?;
        bind(from, &dev.join(name)).with_context(|| format!("failed to show {name}"))
    };
    for device in DEVICES.iter().chain(&["/dev/full", "/dev/tty"]) {
        let name = Path::new(device).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        bind_file(&Path::new("/old").join(strip(device.as_ref())), name)?;
    }
    // A file whose name was removed, as an upgrade does, cannot be mounted any more.
    if bind_file(Path::new(root::PROGRAM), "sandbox").is_err() {
        fs::copy(root::PROGRAM, dev.join("sandbox")).context("failed to copy this program")?;
        fs::set_permissions(dev.join("sandbox"), fs::Permissions::from_mode(0o555))?;
    }
    if !build.spec.system {
        libraries(dev).context("failed to show this program's libraries")?;
    }
    for (name, to) in LINKS {
        symlink(to, dev.join(name))?;
    }
    fs::create_dir(dev.join("forward"))?;
    for (forward, socket) in build.spec.forward.iter().zip(&build.sockets) {
        bind_file(&Path::new("/old").join(strip(socket)), &format!("forward/{}", forward.port))?;
    }
    fs::create_dir(dev.join("shm"))?;
    memory(dev.join("shm"), bounds.disk_bytes, bounds.files, 0o1777)?;
    fs::create_dir(dev.join("pts"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    step("mount terminals", || {
        let options = "newinstance,ptmxmode=0666,mode=620";
        mount(Some("devpts"), &dev.join("pts"), Some("devpts"), flags, Some(options))
    })?;
    let closed = MsFlags::MS_REMOUNT | MsFlags::MS_BIND | MsFlags::MS_RDONLY;
    step("close /dev", || mount(none(), dev, none(), closed | MsFlags::MS_NOSUID | MsFlags::MS_NODEV, none()))
}

/// The files of which this very process was put together, besides its own: its loader and libraries.
fn libraries(dev: &Path) -> anyhow::Result<()> {
    let place = dev.join(strip(LIBRARIES.as_ref()).strip_prefix("dev")?);
    fs::create_dir(&place)?;
    let maps = fs::read_to_string("/old/proc/self/maps")?;
    let files = maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| format!("/{path}"));
    for file in files.collect::<BTreeSet<String>>() {
        let name = Path::new(&file).file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.contains(".so") {
            let to = place.join(if name.starts_with("ld-") { LOADER } else { name });
            fs::write(&to, "")?;
            bind(Path::new(&file), &to).with_context(|| format!("failed to show {file}"))?;
        }
    }
    Ok(())
}

/// `/proc` of the sandbox's own processes. The kernel gives one only where the machine's own is not
/// covered in parts, as it is in most containers.
fn process_table() -> anyhow::Result<()> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    step("mount /proc", || mount(Some("proc"), "/new/proc", Some("proc"), flags, none()))
}

fn leave_machine() -> anyhow::Result<()> {
    chdir("/new")?;
    step("enter the new root", || pivot_root(".", "."))?;
    step("leave the root before", || umount2(".", MntFlags::MNT_DETACH))?;
    chdir("/")?;
    Ok(())
}
