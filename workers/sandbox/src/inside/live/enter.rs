//! The outer process of a long-lived sandbox: joins the keeper's namespaces, makes the sandbox's
//! own, starts the first process within, and waits for its end or for the owner's.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use anyhow::Context;
use nix::mount::{MsFlags, mount};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket,
};
use nix::unistd::{chdir, sethostname};

use crate::inside::launch::{close_others, leave_root};
use crate::inside::root::{self, none, step};

/// Keeps the streams alone open, and joins a keeper's namespaces of users and mounts.
pub(super) fn join_keeper(keeper: &str) -> anyhow::Result<()> {
    let mounts = join_users(keeper)?;
    setns(&mounts, CloneFlags::CLONE_NEWNS).context("failed to join the keeper's mounts")?;
    Ok(())
}

/// Keeps the streams alone open, and joins a keeper's namespace of users. Returns that of its mounts.
pub(super) fn join_users(keeper: &str) -> anyhow::Result<File> {
    close_others().context("failed to close what is open")?;
    let open = |kind: &str| {
        let keeper: u32 = keeper.parse().context("failed to read the keeper's number")?;
        File::open(format!("/proc/{keeper}/ns/{kind}")).context("failed to find the keeper of layers")
    };
    let (user, mounts) = (open("user")?, open("mnt")?);
    leave_root().context("failed to give up the rights of root")?;
    setns(&user, CloneFlags::CLONE_NEWUSER).context("failed to join the keeper's users")?;
    Ok(mounts)
}

/// Runs a sandbox on the layers of this keeper.
///
/// # Errors
/// The machine does not let us, or the keeper has ended.
pub(crate) fn run(keeper: &str) -> anyhow::Result<()> {
    join_keeper(keeper)?;
    chdir("/")?;
    unshare(
        CloneFlags::CLONE_NEWNS
            | CloneFlags::CLONE_NEWPID
            | CloneFlags::CLONE_NEWNET
            | CloneFlags::CLONE_NEWIPC
            | CloneFlags::CLONE_NEWUTS
            | CloneFlags::CLONE_NEWCGROUP,
    )
    .context(root::NAMESPACES_REMEDY)?;
    // New layers of the keeper come; nothing goes back.
    step("make mounts follow", || mount(none(), "/", none(), MsFlags::MS_REC | MsFlags::MS_SLAVE, none()))?;
    sethostname("sandbox").context("failed to set the host's name")?;
    loopback_up().context("failed to bring the loopback up")?;
    let mut init = Command::new(root::PROGRAM)
        .arg(crate::HOUSE)
        .env_clear()
        // All three are the owner's: the connection, and two that lead nowhere.
        .stdin(Stdio::inherit())
        .stdout(Stdio::inherit())
        .stderr(Stdio::inherit())
        .spawn()
        .context("failed to start the first process within")?;
    wait(&mut init)
}

/// Waits until the first process within has ended, or the owner closes our connection. When it has
/// been waited for, the kernel has killed everything within.
fn wait(init: &mut Child) -> anyhow::Result<()> {
    let (owner, id) = (std::io::stdin(), nix::unistd::Pid::from_raw(init.id().cast_signed()));
    let ended = pidfd(id)?;
    loop {
        let mut ends =
            [PollFd::new(owner.as_fd(), PollFlags::empty()), PollFd::new(ended.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ends, PollTimeout::NONE) {
            Ok(_) => break,
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let _ = init.kill();
    init.wait().context("failed to wait for the first process within")?;
    Ok(())
}

fn pidfd(pid: nix::unistd::Pid) -> anyhow::Result<std::os::fd::OwnedFd> {
    let pid = rustix::process::Pid::from_raw(pid.as_raw()).context("a process has a number")?;
    let flags = rustix::process::PidfdFlags::empty();
    rustix::process::pidfd_open(pid, flags).context("failed to watch the first process within")
}

/// Asks the kernel, by its own protocol for networks, to bring interface 1 up.
fn loopback_up() -> anyhow::Result<()> {
    const NEW_LINK: u16 = 16;
    const REQUEST_AND_ACK: u16 = 1 | 4;
    const UP: u32 = 1;
    let mut message = Vec::new();
    message.extend(32_u32.to_ne_bytes()); // Length of it all.
    message.extend(NEW_LINK.to_ne_bytes());
    message.extend(REQUEST_AND_ACK.to_ne_bytes());
    message.extend([0; 8]); // Sequence and sender.
    message.extend([0; 4]); // Family and kind of device.
    message.extend(1_i32.to_ne_bytes()); // The loopback.
    message.extend(UP.to_ne_bytes());
    message.extend(UP.to_ne_bytes()); // What is changed.
    let route = SockProtocol::NetlinkRoute;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, route)?;
    let raw = std::os::fd::AsRawFd::as_raw_fd(&socket);
    sendto(raw, &message, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
    let mut answer = [0; 256];
    let n = recv(raw, &mut answer, MsgFlags::empty())?;
    // Behind the head of 16 bytes is the error, 0 if there is none.
    let code = answer.get(16..20).filter(|_| n >= 20).context("the answer is too short")?;
    anyhow::ensure!(code == [0; 4], "the kernel refuses: {code:?}");
    Ok(())
}
