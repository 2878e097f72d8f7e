//! A connection to a port of a sandbox from outside. This process stands in the sandbox's network for
//! a moment: it connects, hands the socket to the owner and ends. The socket stays in that network.

use std::fs::File;
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, ensure};
use nix::sched::{CloneFlags, setns};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::enter::join_users;

/// A server whose queue of connections is full is waited for no longer than this.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects to `port` in the network of the outer process `outer`. The socket goes to the standard
/// input.
///
/// # Errors
/// The sandbox has ended, or nothing listens there.
pub(crate) fn run(keeper: &str, outer: &str, port: &str) -> anyhow::Result<()> {
    let outer: u32 = outer.parse().context("failed to read the sandbox's number")?;
    let port: u16 = port.parse().context("failed to read the port")?;
    join_users(keeper)?;
    let network = File::open(format!("/proc/{outer}/ns/net")).context("the sandbox has ended")?;
    // The kernel lets us into networks of this keeper's sandboxes alone.
    setns(&network, CloneFlags::CLONE_NEWNET).context("failed to join the sandbox's network")?;
    let stream = connect(port).with_context(|| format!("nothing answers on the sandbox's port {port}"))?;
    let sockets = [stream.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = SendAncillaryBuffer::new(&mut space);
    ensure!(passed.push(SendAncillaryMessage::ScmRights(&sockets)), "there is no room for the socket");
    let owner = std::io::stdin();
    sendmsg(&owner, &[IoSlice::new(b"!")], &mut passed, SendFlags::empty())
        .context("failed to hand over the socket")?;
    Ok(())
}

fn connect(port: u16) -> std::io::Result<TcpStream> {
    let to = |address: SocketAddr| TcpStream::connect_timeout(&address, PATIENCE);
    match to((Ipv4Addr::LOCALHOST, port).into()) {
        // Some servers listen on the other loopback alone.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            to((Ipv6Addr::LOCALHOST, port).into()).map_err(|_| error)
        }
        connected => connected,
    }
}
