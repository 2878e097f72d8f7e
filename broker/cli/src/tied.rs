//! Executes another program, which the kernel kills when the parent dies: `millrace up` leaves no
//! process behind, even if it is killed itself.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::getppid;

/// A command for a program that is killed when this process dies, and that appends its output to
/// `log`. `millrace` is the path of this program. The caller adds the program's arguments.
///
/// The kernel watches the thread that starts it, not the process, so start it on a thread that
/// lives as long. Worker threads of a runtime do, except those that `block_in_place` leaves behind
/// and those for blocking work.
///
/// # Errors
/// The log cannot be opened.
pub fn tied(millrace: &Path, program: &Path, log: &Path) -> Result<tokio::process::Command> {
    let file = OpenOptions::new().create(true).append(true).open(log);
    let file = file.with_context(|| format!("failed to open log={}", log.display()))?;
    let mut command = tokio::process::Command::new(millrace);
    command
        .args(["tied", "--parent", &std::process::id().to_string(), "--"])
        .arg(program)
        .stdin(Stdio::null())
        .stdout(file.try_clone().context("failed to share the log")?)
        .stderr(file)
        .process_group(0)
        .kill_on_drop(true);
    Ok(command)
}

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
    /// Returns only if the program cannot be started.
    pub(super) fn run(self) -> Result<ExitCode> {
        // The setting survives exec. The programs need no warning: each tolerates a kill at any
        // time.
        set_pdeathsig(Signal::SIGKILL).context("failed to tie the process to its parent")?;
        // If the parent died before the call, no signal is sent.
        if getppid().as_raw() != self.parent {
            bail!("failed to start: parent pid={} is gone", self.parent);
        }
        let (program, args) = self.program.split_first().context("failed to start: no program")?;
        Err(Command::new(program).args(args).exec())
            .with_context(|| format!("failed to start program={}", program.display()))
    }
}
