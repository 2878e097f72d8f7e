//! A small disk of its own for the object store, so that it can be full without harm to the machine: a tmpfs
//! in a mount namespace of this process, gone with the last process in it.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

/// Set in the environment of a process that has a mount namespace of its own.
const MARK: &str = "MILLRACE_CHAOS_NAMESPACE";
/// Bytes written at once.
const CHUNK: usize = 1024 * 1024;

/// Restarts this program in a mount namespace of its own, if the system permits it, and returns
/// whether it runs in one.
pub fn own_namespace() -> bool {
    if std::env::var_os(MARK).is_some() {
        return true;
    }
    // As root, else as root of a user namespace.
    for way in [&["--mount"][..], &["--map-root-user", "--mount"]] {
        let may = Command::new("unshare").args(way).arg("true").output();
        if may.is_ok_and(|tried| tried.status.success())
            && let Ok(own) = std::env::current_exe()
        {
            let args = std::env::args_os().skip(1);
            // Only a failure comes back.
            let _ = Command::new("unshare").args(way).arg(own).args(args).env(MARK, "1").exec();
        }
    }
    false
}

/// A disk that can be filled.
#[derive(Debug)]
pub struct Disk {
    folder: PathBuf,
}

impl Disk {
    /// Mounts a disk of so many MiB on `folder`, which is made. Call [`own_namespace`] first.
    ///
    /// # Errors
    /// The folder cannot be made, or the system does not let us mount.
    pub fn mount(folder: &Path, mib: u32) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
        let size = format!("size={mib}m");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder).output();
        let mount = mount.context("failed to run mount")?;
        ensure!(mount.status.success(), "failed to mount: {}", String::from_utf8_lossy(&mount.stderr).trim());
        Ok(Self { folder: folder.to_owned() })
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Fills it up, and keeps it so until [`Disk::free`]. Takes its time, on a thread for that.
    ///
    /// # Errors
    /// The filler cannot be written for another reason than that the disk is full.
    ///
    /// # Panics
    /// Never: writing a file does not panic.
    pub async fn fill(&self) -> std::io::Result<()> {
        let filler = self.filler();
        // Not in place: the thread that is left behind then ends, and takes along what was tied to it.
        let filling = tokio::task::spawn_blocking(move || fill(&filler));
        filling.await.expect("writing a file does not panic")
    }

    /// Makes room again.
    ///
    /// # Errors
    /// The filler cannot be removed.
    pub fn free(&self) -> std::io::Result<()> {
        match std::fs::remove_file(self.filler()) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Writes until there is no room for another byte.
fn fill(filler: &Path) -> std::io::Result<()> {
    let mut file = File::create(filler)?;
    let mut chunk = vec![0; CHUNK];
    while !chunk.is_empty() {
        match file.write(&chunk) {
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::StorageFull => chunk.truncate(chunk.len() / 2),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: processes with open files keep them. The namespace would end the mount anyway.
        let _ = Command::new("umount").arg("-l").arg(&self.folder).output();
    }
}
