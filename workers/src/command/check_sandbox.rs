//! `millrace-worker check-sandbox`: whether the reward `code`, or agents, can run on this machine,
//! before a run starts that needs it.

use std::ffi::OsString;
use std::path::Path;

use crate::rewards::tools::ToolArgs;
use clap::Parser;

use super::agents::WallArgs;
use super::check_model;

/// The subcommand.
const WORD: &str = "check-sandbox";

/// Runs a program that does nothing in the sandbox, behind all its walls. Reports which wall is
/// missing, and how to get it
#[derive(Debug, Parser)]
#[command(name = "millrace-worker check-sandbox")]
pub(super) struct CheckSandbox {
    #[command(flatten)]
    tools: ToolArgs,
    /// Try a sandbox for agents instead
    #[arg(long)]
    agents: bool,
    #[command(flatten)]
    walls: WallArgs,
}

impl CheckSandbox {
    /// The parsed command line; `None` for that of a worker.
    pub(super) fn asked(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        check_model::asked(WORD, words)
    }

    /// Checks it.
    ///
    /// # Errors
    /// What is missing.
    #[expect(clippy::print_stdout, reason = "the answer of a command")]
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let tools = self.tools.tools()?;
        let program = tools.code().program().unwrap_or(Path::new(""));
        if self.agents {
            self.walls.sandboxed(tools.code().program()).await?;
            println!("{} runs agents behind all their walls", program.display());
            return Ok(());
        }
        tools.code().probe().await?;
        println!("{} runs {} behind all its walls", program.display(), tools.code().python());
        Ok(())
    }
}
