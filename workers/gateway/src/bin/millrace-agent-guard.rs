//! `millrace-agent-guard PROGRAM ARGUMENTS…`: runs a program, and leaves no process of it behind. It
//! kills all that the program started when the program ends, and when its own input ends, which it does
//! with the worker, however that dies.

use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio, exit};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// The exit code for a program that does not start, as a shell has it.
const NOT_STARTED: i32 = 127;
/// Added to the signal that ended the program, as a shell does.
const SIGNALLED: i32 = 128;

fn main() {
    let mut words = std::env::args_os().skip(1);
    // Orphans of the program become this process's children, whatever session they are in.
    let adopts = prctl::set_child_subreaper(true);
    let (Some(program), Ok(())) = (words.next(), adopts) else { exit(NOT_STARTED) };
    let started = Command::new(&program).args(words).stdin(Stdio::null()).process_group(0).spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "failed to start {}: {error}", program.display());
            exit(NOT_STARTED)
        }
    };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        kill_children();
        exit(SIGNALLED + Signal::SIGKILL as i32);
    });
    let status = child.wait();
    kill_children();
    let code =
        status.ok().and_then(|status| status.code().or(status.signal().map(|signal| SIGNALLED + signal)));
    exit(code.unwrap_or(NOT_STARTED));
}

/// Kills children until there are none: the children of each become this process's.
fn kill_children() {
    loop {
        let children = children();
        for child in &children {
            // It may have ended.
            let _ = kill(Pid::from_raw(*child), Signal::SIGKILL);
        }
        // One that was not listed yet is not waited for, but listed again.
        let flags = children.is_empty().then_some(WaitPidFlag::WNOHANG);
        match waitpid(None, flags) {
            Err(Errno::ECHILD) => return,
            Ok(_) | Err(_) => std::thread::yield_now(),
        }
    }
}

/// The processes whose parent is this one.
fn children() -> Vec<i32> {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The parent is the second word after the name, which is in brackets.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.split_whitespace().nth(1) == Some(own.as_str()))
    };
    pids.filter(is_child).collect()
}
