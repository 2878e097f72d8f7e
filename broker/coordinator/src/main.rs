//! The `millrace` command.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    match millrace_coordinator::cli::Cli::parse().run().await {
        Ok(code) => code,
        Err(error) => {
            // In words, without a backtrace: what is wrong is the user's to mend.
            let _ = writeln!(std::io::stderr(), "Error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
