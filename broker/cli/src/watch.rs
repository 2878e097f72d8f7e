//! `millrace watch`: a live view of a run.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use millrace_schemas::RunId;
use millrace_schemas::api::{RunRequest, RunState, Status};
use tokio_util::sync::CancellationToken;

use super::connect::ConnectionArgs;
use super::follow::Follow;
use super::live::view;
use super::status::headline;
use super::term::say;
use super::up::reopen::Asks;

/// Silence of the coordinator after which watching ends.
const PATIENCE: Duration = Duration::from_secs(60);

/// Arguments of `millrace watch`.
#[derive(Debug, clap::Args)]
pub(super) struct WatchArgs {
    /// The run; may be left out where there is only one
    run: Option<RunId>,
}

impl WatchArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let api = connection.reading(Asks::CoordinatorOfEnded).await?;
        let first: Status = api.call("status", &RunRequest { run: self.run }).await?;
        let mut view = view();
        let follow = Follow {
            api: &api,
            run: &first.run,
            view: view.as_mut(),
            prompts: None,
            restarts: None,
            news: None,
            leaves_paused: false,
            patience: Some(PATIENCE),
        };
        // Ctrl-C ends the view, not the run.
        let followed = follow.until_over(&CancellationToken::new()).await?;
        let Some(status) = followed.status else { return Ok(ExitCode::FAILURE) };
        say(headline(&status));
        Ok(if status.state == RunState::Finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
