//! `millrace-worker`, which is `command.rs` of the library: compiled once, for this program and for
//! tests.

use std::io::Write;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Err(error) = millrace_workers::command::main() else { return ExitCode::SUCCESS };
    // The chain of causes alone: a user has no use for a backtrace of this program.
    let _ = writeln!(std::io::stderr(), "Error: {error:#}");
    ExitCode::FAILURE
}
