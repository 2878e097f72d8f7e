//! `millrace-worker check-sandbox`: whether answers of the reward `code` can run on this machine, before a run is begun
//! that needs it.

use std::ffi::OsString;
use std::path::Path;

use crate::rewards::tools::ToolArgs;
use clap::Parser;

use super::check_model;

/// The word that asks for it, in place of the options of a worker.
const WORD: &str = "check-sandbox";

/// Runs a program that does nothing in the sandbox, behind all its walls. Says which wall is missing, and how to get it.
#[derive(Debug, Parser)]
#[command(name = "millrace-worker check-sandbox")]
pub(super) struct CheckSandbox {
    #[command(flatten)]
    tools: ToolArgs,
}

impl CheckSandbox {
    /// What the command line asks to check; `None` if it is that of a worker.
    pub(super) fn asked(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        check_model::asked(WORD, words)
    }

    /// Checks it.
    ///
    /// # Errors
    /// Says what is missing.
    #[expect(clippy::print_stdout, reason = "the answer of a command")]
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let tools = self.tools.tools()?;
        tools.code().probe().await?;
        let program = tools.code().program().unwrap_or(Path::new(""));
        println!("{} runs {} behind all its walls", program.display(), tools.code().python());
        Ok(())
    }
}
