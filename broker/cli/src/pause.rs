//! `millrace pause`, `millrace resume` and `millrace rm`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::RunId;
use millrace_schemas::api::{RunReply, RunRequest};

use super::connect::Place;
use super::term::say;

/// Arguments of each.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// The run
    run: RunId,
}

impl RunArgs {
    pub(super) async fn pause(self, place: &Place) -> Result<ExitCode> {
        let run = self.call("pause", place).await?;
        say(format_args!("{run} is paused; `millrace resume {run}` lets it go on"));
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn resume(self, place: &Place) -> Result<ExitCode> {
        let run = self.call("resume", place).await?;
        say(format_args!("{run} goes on"));
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn remove(self, place: &Place) -> Result<ExitCode> {
        let run = self.call("rm", place).await?;
        say(format_args!("{run} is archived; its versions stay, and so its name stays taken"));
        Ok(ExitCode::SUCCESS)
    }

    async fn call(self, endpoint: &'static str, place: &Place) -> Result<RunId> {
        let request = RunRequest { run: Some(self.run) };
        let reply: RunReply = place.api().await?.call(endpoint, &request).await?;
        Ok(reply.run)
    }
}
