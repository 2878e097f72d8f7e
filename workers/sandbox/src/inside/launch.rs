//! The outer process: gives up what rights it has, enters new namespaces, builds what is seen in
//! there, starts the first process within and waits for its end, or for the worker's.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use millrace_sandbox::Job;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{Gid, Uid, close, getegid, geteuid, setgroups, setresgid, setresuid};

use super::root;

/// Who has no rights on any Linux.
const NOBODY: u32 = 65_534;
/// Who programs are within.
pub(crate) const WITHIN: u32 = 1_000;

/// Runs the job in new namespaces.
///
/// # Errors
/// The machine does not let us.
pub(crate) fn run(job: &Job) -> anyhow::Result<()> {
    close_others().context("failed to close what is open")?;
    leave_root().context("failed to give up the rights of root")?;
    enter().context(root::NAMESPACES_REMEDY)?;
    root::build(job)?;
    let mut init = start(job).context("failed to start the first process within")?;
    wait(&init)?;
    // Either has ended; with the first process everything within is gone.
    let _ = init.kill();
    init.wait().context("failed to wait for the first process within")?;
    Ok(())
}

/// Closes whatever the worker, or who started it, left open: a program within would hold it too.
pub(crate) fn close_others() -> std::io::Result<()> {
    let open: Vec<i32> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // The one by which the folder was read is among them, and closed already.
        let _ = close(fd);
    }
    Ok(())
}

/// Root's files are root's even from within, and root's processes are not counted. So root becomes
/// nobody first. Who is root in a namespace of users alone is nobody outside, and may have nobody
/// to become.
pub(crate) fn leave_root() -> anyhow::Result<()> {
    const EVERYBODY: [&str; 3] = ["0", "0", "4294967295"];
    let users = fs::read_to_string("/proc/self/uid_map")?;
    if !geteuid().is_root() || !users.split_whitespace().eq(EVERYBODY) {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[])?;
    setresgid(group, group, group)?;
    setresuid(user, user, user)?;
    // The kernel took this away with the rights; without it a process may not write its own maps of
    // users.
    prctl::set_dumpable(true)?;
    Ok(())
}

fn enter() -> anyhow::Result<()> {
    let (user, group) = (geteuid(), getegid());
    unshare(
        CloneFlags::CLONE_NEWUSER
            | CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWCGROUP,
    )?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{WITHIN} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{WITHIN} {group} 1"))?;
    Ok(())
}

/// Starts this program again as the first process of the new namespace. Not being root in there it
/// has no rights left.
fn start(job: &Job) -> anyhow::Result<Child> {
    let mut init = Command::new(root::PROGRAM)
        .arg(crate::INIT)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut line = serde_json::to_vec(job)?;
    line.push(b'\n');
    init.stdin.as_mut().context("its input is not there")?.write_all(&line)?;
    Ok(init)
}

/// Waits until the first process within has ended, which closes its input, or the worker, which
/// closes ours.
fn wait(init: &Child) -> anyhow::Result<()> {
    let (ours, its) = (std::io::stdin(), init.stdin.as_ref().context("its input is not there")?);
    loop {
        let mut ends =
            [PollFd::new(ours.as_fd(), PollFlags::POLLIN), PollFd::new(its.as_fd(), PollFlags::empty())];
        match poll(&mut ends, PollTimeout::NONE) {
            Ok(_) => return Ok(()),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
