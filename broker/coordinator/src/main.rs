//! `millrace`, which is `cli.rs` of the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_coordinator::cli::main()
}
