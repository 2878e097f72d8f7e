//! `millrace`: the library's commands as a program.

use std::process::ExitCode;

fn main() -> ExitCode {
    millrace_cli::main()
}
