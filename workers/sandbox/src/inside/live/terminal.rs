//! Terminals of commands: the side that the first process within has, and how a command gets the
//! other.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context;
use millrace_sandbox::live::{Terminal, TerminalSize};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::setsid;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use super::command::not_started;

/// What a terminal that reads by lines takes for the end of its input.
pub(crate) const END_OF_INPUT: u8 = 4;

/// A terminal, as long as this value is there.
pub(crate) struct Screen {
    /// The side that types and reads. It does not block.
    pub(crate) outer: OwnedFd,
    /// The side of the program, which stays open, or it would be over with the first that closes it.
    _inner: OwnedFd,
    /// The same by its name within.
    pub(crate) path: PathBuf,
}

impl Screen {
    /// Opens one.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn open(terminal: Terminal) -> anyhow::Result<Self> {
        // It must not become the first process's own.
        let outer = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)
            .context("failed to open a terminal")?;
        grantpt(&outer)?;
        unlockpt(&outer)?;
        let name = ptsname(&outer, Vec::new())?;
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes()));
        let inner = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(&path)
            .with_context(|| format!("failed to open {}", path.display()))?;
        if !terminal.echo {
            let mut modes = tcgetattr(&inner)?;
            modes.local_modes -= LocalModes::ECHO;
            tcsetattr(&inner, OptionalActions::Now, &modes)?;
        }
        fcntl(&outer, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        let screen = Self { outer, _inner: inner.into(), path };
        screen.resize(terminal.size)?;
        Ok(screen)
    }

    /// Gives it another size.
    ///
    /// # Errors
    /// The system says.
    pub(crate) fn resize(&self, TerminalSize { columns, rows }: TerminalSize) -> std::io::Result<()> {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.outer, size)?)
    }
}

/// Becomes a command in the terminal whose path comes first.
pub(crate) fn run(words: &[String]) -> ExitCode {
    let [path, program, arguments @ ..] = words else { return ExitCode::FAILURE };
    let error = match streams(path.as_ref()) {
        Ok([input, output, errors]) => {
            Command::new(program).args(arguments).stdin(input).stdout(output).stderr(errors).exec()
        }
        Err(error) => error,
    };
    ExitCode::from(u8::try_from(not_started(program, &error)).unwrap_or(u8::MAX))
}

/// A session's leader without a terminal gets the first that it opens.
fn streams(path: &Path) -> std::io::Result<[Stdio; 3]> {
    setsid()?;
    let terminal = OpenOptions::new().read(true).write(true).open(path)?;
    Ok([terminal.try_clone()?.into(), terminal.try_clone()?.into(), terminal.into()])
}
