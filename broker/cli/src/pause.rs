//! `millrace pause`, `millrace resume` and `millrace rm`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::RunId;
use millrace_schemas::api::{RunReply, RunRequest};

use super::connect::ConnectionArgs;
use super::term::say;

/// Arguments of each.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    /// The run
    run: RunId,
}

impl RunArgs {
    pub(super) async fn pause(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let run = self.call("pause", connection).await?;
        say(format_args!("{run} is paused; `millrace resume {run}` resumes it"));
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn resume(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let run = self.call("resume", connection).await?;
        say(format_args!("{run} is resumed"));
        Ok(ExitCode::SUCCESS)
    }

    pub(super) async fn remove(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let run = self.call("rm", connection).await?;
        say(format_args!("{run} is archived; its versions are kept, and its name cannot be reused"));
        Ok(ExitCode::SUCCESS)
    }

    async fn call(self, endpoint: &'static str, connection: &ConnectionArgs) -> Result<RunId> {
        let request = RunRequest { run: Some(self.run) };
        let reply: RunReply = connection.api().await?.call(endpoint, &request).await?;
        Ok(reply.run)
    }
}
