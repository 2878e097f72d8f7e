//! A program beside the worker, and what it starts.

use std::io;
use std::process::{ExitStatus, Stdio};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A process. Unless [`Self::ended`] told of its end, it is killed on drop, with all processes that it started.
#[derive(Debug)]
pub(crate) struct ProcessGroup(Child);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(pid) = self.0.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may have ended, with all its processes.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl ProcessGroup {
    /// Starts one that answers over its standard input and output, in a group of its own. Returns these, too.
    /// When the worker dies, its input ends.
    ///
    /// # Errors
    /// The system does not start it.
    pub(crate) fn start(command: &mut Command) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut group = Self::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (Some(input), Some(output)) = (group.0.stdin.take(), group.0.stdout.take()) else {
            return Err(io::Error::other("its input and output are not there"));
        };
        Ok((group, input, output))
    }

    /// Starts one in a group of its own, with the inputs and outputs that `command` gives it.
    ///
    /// # Errors
    /// The system does not start it.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.process_group(0).kill_on_drop(true).spawn().map(Self)
    }

    /// Waits until the process ends. What it started may go on then.
    ///
    /// # Errors
    /// The system does not tell.
    pub(crate) async fn ended(&mut self) -> io::Result<ExitStatus> {
        self.0.wait().await
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}
