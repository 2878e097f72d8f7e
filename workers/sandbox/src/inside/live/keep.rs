//! The keeper of layers: a process in namespaces of its own for users and mounts. Each layer is a
//! file system in memory with a bound of its own. Nothing of them is on a disk or in the machine's
//! table of mounts: when the keeper ends, and it ends with its owner, they are gone.

use std::fs;
use std::io::BufRead;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use millrace_sandbox::live::wire::{FromKeeper, ToKeeper};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{chdir, getegid, geteuid, pivot_root};

use super::LAYERS;
use crate::inside::launch::{close_others, leave_root};
use crate::inside::root::{self, bind, memory, none, step};

/// Bytes for the keeper's own tree.
const TREE_BYTES: u64 = 64 * 1024 * 1024;
/// Entries of its tree: a folder for each layer.
const TREE_ENTRIES: u32 = 1_000_000;

/// Keeps layers until the standard input ends.
///
/// # Errors
/// The machine does not let us.
pub(crate) fn run() -> anyhow::Result<()> {
    let program = std::env::current_exe().context("failed to find this program")?;
    close_others().context("failed to close what is open")?;
    leave_root().context("failed to give up the rights of root")?;
    enter().context(root::NAMESPACES_REMEDY)?;
    build(&program)?;
    say(&FromKeeper::Done);
    for line in std::io::stdin().lock().lines() {
        let asked = serde_json::from_str(&line?).context("failed to read a request for the keeper")?;
        say(&match done(&asked) {
            Ok(()) => FromKeeper::Done,
            Err(error) => FromKeeper::Failed(format!("{error:#}")),
        });
    }
    Ok(())
}

fn say(answer: &FromKeeper) {
    crate::say_line(answer);
}

/// Makes namespaces of users and mounts, and is root in them.
pub(super) fn enter() -> anyhow::Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    Ok(())
}

/// A root of its own, with the machine's below it.
fn build(program: &Path) -> anyhow::Result<()> {
    // What the machine unmounts later is not held by us.
    step("make mounts follow", || mount(none(), "/", none(), MsFlags::MS_REC | MsFlags::MS_SLAVE, none()))?;
    memory("/tmp", TREE_BYTES, TREE_ENTRIES, 0o755)?;
    fs::create_dir("/tmp/old")?;
    step("leave the old root", || pivot_root("/tmp", "/tmp/old"))?;
    chdir("/")?;
    for folder in ["/new", "/etc", LAYERS] {
        fs::create_dir(folder)?;
    }
    // What this program needs to be started.
    for path in root::SYSTEM {
        symlink(Path::new("/old").join(root::strip(path.as_ref())), path)?;
    }
    memory(LAYERS, TREE_BYTES, TREE_ENTRIES, 0o755)?;
    // Sandboxes whose namespaces were made before a layer see it, too.
    step("share layers", || mount(none(), LAYERS, none(), MsFlags::MS_SHARED, none()))?;
    root::own_program(program, root::PROGRAM.as_ref()).context("failed to show this program")
}

fn done(asked: &ToKeeper) -> anyhow::Result<()> {
    match asked {
        &ToKeeper::Make { layer, bytes, files } => {
            let at = place(layer);
            fs::create_dir(&at)?;
            memory(&at, bytes, files, 0o755)?;
            fs::create_dir(at.join("u"))?;
            fs::create_dir(at.join("w"))?;
        }
        ToKeeper::Show { layer, folder } => {
            let at = place(*layer);
            fs::create_dir(&at)?;
            bind(&Path::new("/old").join(root::strip(folder)), &at).with_context(|| {
                format!("failed to show {}; it must be open to all users", folder.display())
            })?;
        }
        &ToKeeper::Drop { layer } => {
            let at = place(layer);
            umount2(&at, MntFlags::MNT_DETACH)?;
            fs::remove_dir(&at)?;
        }
    }
    Ok(())
}

fn place(layer: u64) -> PathBuf {
    Path::new(LAYERS).join(layer.to_string())
}
