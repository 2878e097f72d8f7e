//! `millrace list`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::api::{RunRequest, Status};

use super::connect::Place;
use super::status::headline;
use super::term::say;

/// Arguments of `millrace list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Print what the coordinator answers, as JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub(super) async fn run(self, place: &Place) -> Result<ExitCode> {
        let runs: Vec<Status> = place.api().await?.call("list", &RunRequest::default()).await?;
        if self.json {
            say(serde_json::to_string_pretty(&runs)?);
        } else if runs.is_empty() {
            say("no runs; `millrace submit RUN.toml` hands one in");
        } else {
            runs.iter().map(headline).for_each(say);
        }
        Ok(ExitCode::SUCCESS)
    }
}
