//! `millrace-worker check-data`: whether a model takes every prompt of a file of rows, before a run
//! starts with it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::envs::longest_prompt;
use crate::mcp::objects;
use anyhow::Context;
use bytes::Bytes;
use clap::Parser;
use millrace_policy::directory::files::read_regular;
use millrace_policy::text_codec::Codec;
use millrace_schemas::dataset::{DatasetSpec, Rows};
use millrace_schemas::file_name;
use millrace_schemas::limits::MAX_COMPANION_BYTES;

use super::check_model;
use super::mcp_args::McpArgs;

/// The subcommand.
const WORD: &str = "check-data";

/// Checks a file of rows with the tokenizer and chat template of a model: every prompt must fit in
/// as many tokens as the run file allows. Reports the first row that does not
#[derive(Debug, Parser)]
#[command(name = "millrace-worker check-data")]
pub(super) struct CheckData {
    /// The model's directory
    #[arg(long)]
    model: PathBuf,
    /// The environment of the run file, as JSON, without its name
    #[arg(long)]
    spec: String,
    #[command(flatten)]
    mcp: McpArgs,
    /// The rows, as JSONL; `-` for standard input
    file: PathBuf,
}

impl CheckData {
    /// The parsed command line; `None` for that of a worker.
    pub(super) fn asked(words: impl IntoIterator<Item = OsString>) -> Option<Self> {
        check_model::asked(WORD, words)
    }

    /// Checks it.
    ///
    /// # Errors
    /// The first row that is wrong.
    #[expect(clippy::print_stdout, reason = "the answer of a command")]
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let spec: DatasetSpec = serde_json::from_str(&self.spec).context("failed to read --spec")?;
        let file = |name: &str| {
            let path = file_name::file_in(&self.model, name).ok()?;
            read_regular(&path, MAX_COMPANION_BYTES).ok().map(Bytes::from)
        };
        let codec = Codec::read(file)?;
        let rows = Rows::read(self.content()?.into(), &spec)?;
        let servers = self.mcp.start().await?;
        // Their declarations are in every prompt.
        let is_whole = servers.has_all(&spec.tools);
        let declared = if is_whole { servers.declared(&spec.tools).await? } else { Vec::new() };
        let longest = longest_prompt(&spec, &rows, &codec, &objects(&declared))?;
        let counts = rows.content();
        println!(
            "{} rows to train on, {} held out, the longest prompt of {longest} tokens{}",
            counts.train,
            counts.held_out,
            if is_whole { "" } else { " without those of its tools, whose servers --mcp does not give" }
        );
        Ok(())
    }

    fn content(&self) -> anyhow::Result<Vec<u8>> {
        let mut content = Vec::new();
        let read = if self.file == Path::new("-") {
            std::io::stdin().read_to_end(&mut content)
        } else {
            File::open(&self.file).and_then(|mut file| file.read_to_end(&mut content))
        };
        read.with_context(|| format!("failed to read path={}", self.file.display()))?;
        Ok(content)
    }
}
