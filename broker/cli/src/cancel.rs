//! `millrace cancel`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::RunId;
use millrace_schemas::api::{RunReply, RunRequest};

use super::connect::ConnectionArgs;
use super::term::say;

/// Arguments of `millrace cancel`.
#[derive(Debug, clap::Args)]
pub(super) struct CancelArgs {
    /// The run
    run: RunId,
}

impl CancelArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let request = RunRequest { run: Some(self.run) };
        let reply: RunReply = connection.api().await?.call("cancel", &request).await?;
        say(format_args!("{} is cancelled; its versions are kept", reply.run));
        Ok(ExitCode::SUCCESS)
    }
}
