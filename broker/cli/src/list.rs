//! `millrace list`.

use std::process::ExitCode;

use anyhow::Result;
use millrace_schemas::api::{ListRequest, RunList, RunSummary};

use super::connect::ConnectionArgs;
use super::term::{duration, say};
use super::up::reopen::Asks;

/// Arguments of `millrace list`.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Print the coordinator's response as JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let api = connection.reading(Asks::Coordinator).await?;
        let mut runs = Vec::new();
        let mut request = ListRequest::default();
        loop {
            let page: RunList = api.call("list", &request).await?;
            runs.extend(page.runs);
            match page.next {
                Some(next) => request.after = Some(next),
                None => break,
            }
        }
        if self.json {
            say(serde_json::to_string_pretty(&runs)?);
        } else if runs.is_empty() {
            say("no runs; `millrace submit RUN.toml` submits one");
        } else {
            runs.iter().map(line).for_each(say);
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// `name: running, v12 of 50 after 1m03s`, with the reason if it is not running.
fn line(run: &RunSummary) -> String {
    let seconds = run.now_unix_ms.saturating_sub(run.started_unix_ms) as f64 / 1e3;
    let mut words = format!(
        "{}: {}, {} of {} after {}",
        run.run,
        run.state.name(),
        run.version,
        run.steps,
        duration(seconds)
    );
    for more in [&run.reason, &run.remedy].into_iter().flatten() {
        words = format!("{words}; {more}");
    }
    words
}
