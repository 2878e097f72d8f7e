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
use millrace_schemas::dataset::{DatasetSpec, Leak, Prompts, Rows};
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
    /// Another dataset of the run, its environment as JSON and its rows as JSONL, which must hold out none
    /// of the prompts that this one trains on, nor the other way round; one for each
    #[arg(long, num_args = 2, value_names = ["SPEC", "FILE"])]
    beside: Vec<String>,
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
        let rows = Rows::read(content(&self.file)?.into(), &spec)?;
        for leak in leaks((&rows, &spec), &self.beside)? {
            println!("{leak}");
        }
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
}

fn content(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut content = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().read_to_end(&mut content)
    } else {
        File::open(path).and_then(|mut file| file.read_to_end(&mut content))
    };
    read.with_context(|| format!("failed to read path={}", path.display()))?;
    Ok(content)
}

/// A line for each pair of datasets of which one trains on prompts that the other holds out. `others`
/// are specification and file in turn.
fn leaks(own: (&Rows, &DatasetSpec), others: &[String]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    if others.is_empty() {
        return Ok(lines);
    }
    let own = Prompts::of(own.0, own.1)?;
    for other in others.chunks_exact(2) {
        let path = &other[1];
        let spec: DatasetSpec = serde_json::from_str(&other[0]).context("failed to read --beside")?;
        let rows = Rows::read(content(Path::new(path))?.into(), &spec)?;
        let other = Prompts::of(&rows, &spec)?;
        if let Some(leak) = Leak::find(&own, &other)? {
            lines.push(format!("beside {path}: {leak}"));
        }
        if let Some(leak) = Leak::find(&other, &own)? {
            lines.push(format!("from {path}: {leak}"));
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_that_another_domain_holds_out_are_reported_by_count_and_example() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        let rows: String = (0..40).map(|i| format!("{{\"prompt\": \"{i}\", \"answer\": {i}}}\n")).collect();
        std::fs::write(&path, &rows).expect("a file");
        let with = |held_out: f64| format!(r#"{{"path": "rows.jsonl", "held_out": {held_out}}}"#);
        let spec: DatasetSpec = serde_json::from_str(&with(0.25)).expect("a specification");
        let rows = Rows::read(rows.into(), &spec).expect("rows");
        let path = path.display().to_string();
        let found = |held_out| leaks((&rows, &spec), &[with(held_out), path.clone()]).expect("rows");
        assert!(found(0.25).is_empty());
        let [line] = &found(0.5)[..] else { panic!("{:?}", found(0.5)) };
        assert!(
            line.starts_with(&format!("beside {path}: prompts=10 are trained on and held out there, as \"")),
            "{line}"
        );
        let [line] = &found(0.0)[..] else { panic!("{:?}", found(0.0)) };
        assert!(line.starts_with(&format!("from {path}: prompts=10 are trained on")), "{line}");
    }
}
