//! `millrace submit`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use millrace_schemas::RunSpec;
use millrace_schemas::api::RunReply;
use millrace_schemas::submit::{from_json, from_toml};

use super::connect::ConnectionArgs;
use super::data;
use super::term::say;

/// Arguments of `millrace submit`.
#[derive(Debug, clap::Args)]
pub(super) struct SubmitArgs {
    /// The run file, TOML or JSON
    run_file: PathBuf,
}

impl SubmitArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let mut spec = read_run_file(&self.run_file)?;
        let contents = data::read(&mut spec, &self.run_file)?;
        if !contents.is_empty() {
            data::check_prompts(&spec, &contents, &[]).await?;
            data::store(&connection.open_objects()?, &spec, contents).await?;
        }
        let reply: RunReply = connection.api().await?.call("submit", &spec).await?;
        say(format_args!("submitted {}; `millrace watch {}` shows it", reply.run, reply.run));
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads and checks a run file: JSON if its name ends in `.json`, else TOML.
pub(super) fn read_run_file(path: &Path) -> Result<RunSpec> {
    parse(path).with_context(|| format!("failed to read run file path={}", path.display()))
}

/// The same, whose error does not name the file.
pub(super) fn parse(path: &Path) -> Result<RunSpec> {
    let text = std::fs::read_to_string(path)?;
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    Ok(if is_json { from_json(text.as_bytes()) } else { from_toml(&text) }?)
}
