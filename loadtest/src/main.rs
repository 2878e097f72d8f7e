//! `millrace-loadtest`, which is `command.rs` of the library.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> anyhow::Result<ExitCode> {
    millrace_loadtest::command::main()
}
