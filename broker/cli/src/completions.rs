//! `millrace completions`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;

use super::command::Cli;
use super::term::is_closed_pipe;

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
        match io::stdout().write_all(&script).context("failed to write the completions") {
            Err(error) if is_closed_pipe(&error) => {}
            written => written?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
