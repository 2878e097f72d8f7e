//! `millrace-loadtest`, which is `command.rs` of the library.

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    millrace_loadtest::command::main()
}
