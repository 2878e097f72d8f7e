//! Between the first process and a command: adopts what the command's processes leave when they end,
//! so that all of it is found and killed at a timeout. Ends with the command's own process.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use super::PROGRAM;
use super::command::not_started;

/// Runs a command, and ends as it does: with its code, or 128 and the number of its signal.
pub(crate) fn run(argv: &[String]) -> ExitCode {
    let Some((program, arguments)) = argv.split_first() else { return ExitCode::FAILURE };
    supervise(program, Command::new(program).args(arguments))
}

/// The same in a terminal, whose path comes first.
pub(crate) fn run_in_terminal(words: &[String]) -> ExitCode {
    supervise(PROGRAM, super::program().arg(crate::TERMINAL).args(words))
}

fn supervise(program: &str, command: &mut Command) -> ExitCode {
    let _ = setsid();
    if prctl::set_child_subreaper(true).is_err() {
        return ExitCode::FAILURE;
    }
    let own = match command.spawn() {
        Ok(child) => Pid::from_raw(child.id().cast_signed()),
        Err(error) => return code(not_started(program, &error)),
    };
    loop {
        match waitpid(None::<Pid>, None) {
            Ok(WaitStatus::Exited(pid, n)) if pid == own => return code(n),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == own => {
                return code(128 + ExitStatus::from_raw(signal as i32).signal().unwrap_or_default());
            }
            Err(Errno::ECHILD) => return ExitCode::FAILURE,
            Ok(_) | Err(_) => {}
        }
    }
}

fn code(n: i32) -> ExitCode {
    ExitCode::from(u8::try_from(n & 0xff).unwrap_or(u8::MAX))
}
