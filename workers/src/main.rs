//! `millrace-worker`, which is `command.rs` of the library: compiled once, for this program and for
//! tests.

fn main() -> anyhow::Result<()> {
    millrace_workers::command::main()
}
