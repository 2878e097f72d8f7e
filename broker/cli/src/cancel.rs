//! `millrace cancel`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::RunId;
use millrace_schemas::api::{RunReply, RunRequest};

use super::connect::Place;
use super::term::say;

/// Arguments of `millrace cancel`.
#[derive(Debug, clap::Args)]
pub(super) struct CancelArgs {
    /// The run
    run: RunId,
}

impl CancelArgs {
    pub(super) async fn run(self, place: &Place) -> Result<ExitCode> {
        let request = RunRequest { run: Some(self.run) };
        let reply: RunReply = place.api().await?.call("cancel", &request).await?;
        say(format_args!("{} ends; its versions stay", reply.run));
        Ok(ExitCode::SUCCESS)
    }
}
