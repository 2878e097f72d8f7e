//! `millrace completions`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use super::command::Cli;

/// Arguments of `millrace completions`.
#[derive(Debug, clap::Args)]
pub(super) struct CompletionsArgs {
    /// The shell, as in `source <(millrace completions bash)`
    shell: Shell,
}

impl CompletionsArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "millrace", &mut script);
        match io::stdout().write_all(&script) {
            // The reader closed the pipe.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written.context("failed to write the completions")?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
