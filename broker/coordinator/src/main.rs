//! The `millrace` command.

use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    millrace_coordinator::cli::Cli::parse().run().await
}
