//! A program beside the worker that answers over its standard input and output, and what it starts.

use std::io;
use std::process::Stdio;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// A process. It is killed on drop, with all processes that it started. When the worker dies, its
/// input ends.
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
    /// Starts it, in a group of its own. Returns its input and its output, too.
    ///
    /// # Errors
    /// The system does not start it.
    pub(crate) fn start(command: &mut Command) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("its input and output are not there"));
        };
        Ok((Self(child), input, output))
    }

    /// Whether it has not ended.
    pub(crate) fn is_alive(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }
}
