//! Becomes another program, which the kernel kills when the parent dies: `millrace up` leaves no process
//! behind, even when it is killed itself.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// Arguments of `millrace tied`.
#[derive(Debug, clap::Args)]
pub(super) struct TiedArgs {
    /// Process that the program must not outlive
    #[arg(long)]
    parent: i32,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    program: Vec<std::ffi::OsString>,
}

impl TiedArgs {
    /// Returns only when the program cannot be started.
    pub(super) fn run(self) -> Result<ExitCode> {
        // Kept over exec. The program needs no warning: all of them stand a kill at any moment.
        set_pdeathsig(Signal::SIGKILL).context("failed to tie the process to its parent")?;
        // A parent that died before this was asked for sends nothing.
        if getppid().as_raw() != self.parent {
            bail!("failed to start: parent pid={} is gone", self.parent);
        }
        let (program, args) = self.program.split_first().context("failed to start: no program")?;
        Err(Command::new(program).args(args).exec())
            .with_context(|| format!("failed to start program={}", program.display()))
    }
}
