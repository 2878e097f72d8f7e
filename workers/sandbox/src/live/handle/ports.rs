//! Servers within a sandbox, for its owner.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::net::TcpStream;
use tokio::sync::SemaphorePermit;
use tokio::time::timeout;

use super::{LiveSandbox, PATIENCE};
use crate::live::spec::LiveError;
use crate::run::piped;

/// Connections to ports of one sandbox that are being made at once; more wait. A server that listens and does not
/// accept holds each for seconds, and shall not hold all places of its host.
pub(super) const DIALLING: usize = 4;

impl LiveSandbox {
    /// Connects to a port of the sandbox's own loopback. Nothing of the machine's network is reached by
    /// that. Costs a process that lives for some milliseconds.
    ///
    /// # Errors
    /// Nothing answers there, too many others wait for that, or the sandbox has ended.
    pub async fn connect(&self, port: u16) -> Result<TcpStream, LiveError> {
        let program = &self.host.settings().program;
        let fail = |error: std::io::Error| LiveError::start(program, &error);
        let _room = timeout(PATIENCE, self.room()).await.map_err(|_| {
            LiveError::Failed(format!(
                "the sandbox's port {port} is not connected to: others wait for ports that do not answer; try again"
            ))
        })??;
        let (ours, its) = UnixStream::pair().map_err(fail)?;
        let child = piped(program)
            .args(["dial", &self.host.keeper().pid().to_string()])
            .args([self.body.pid.to_string(), port.to_string()])
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stderr(Stdio::piped())
            .spawn()
            .map_err(fail)?;
        let late = |_| LiveError::Failed(format!("the sandbox's port {port} does not answer"));
        let output = timeout(PATIENCE, child.wait_with_output()).await.map_err(late)?.map_err(fail)?;
        // A number that another process has by now was none of a living sandbox.
        if !self.is_alive() {
            return Err(LiveError::Ended);
        }
        if !output.status.success() {
            return Err(LiveError::Failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let socket = std::net::TcpStream::from(received(&ours).map_err(fail)?);
        socket.set_nonblocking(true).map_err(fail)?;
        TcpStream::from_std(socket).map_err(fail)
    }
}

impl LiveSandbox {
    /// Room to connect, in the sandbox's own share before it is in the host's.
    async fn room(&self) -> Result<[SemaphorePermit<'_>; 2], LiveError> {
        let ended = |_| LiveError::Ended;
        let own = self.dialling.acquire().await.map_err(ended)?;
        Ok([own, self.host.dialling().acquire().await.map_err(ended)?])
    }
}

/// The socket that was handed over.
fn received(from: &UnixStream) -> std::io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut passed = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    recvmsg(from, &mut [IoSliceMut::new(&mut [0])], &mut passed, flags)?;
    let sockets = passed.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    sockets.last().ok_or_else(|| std::io::Error::other("no socket was handed over"))
}
