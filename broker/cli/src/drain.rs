//! `millrace drain`.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use millrace_schemas::WorkerId;
use millrace_schemas::drain::DrainWorker;
use millrace_schemas::limits::WORKER_REPORT_MS;
use millrace_schemas::notice::WorkerNotice;
use millrace_schemas::subjects;
use tokio::time::{Instant, timeout_at};

use super::connect::ConnectionArgs;
use super::term::say;

/// A worker reports a few times in this period.
const PATIENCE: Duration = Duration::from_millis(3 * WORKER_REPORT_MS);

/// Arguments of `millrace drain`.
#[derive(Debug, clap::Args)]
pub(super) struct DrainArgs {
    /// The worker
    worker: WorkerId,
    /// Seconds until it may be killed. Default: its own grace period
    #[arg(long, value_name = "SECONDS")]
    within: Option<f64>,
}

impl DrainArgs {
    /// Asks the worker to leave, and waits for its report that it does.
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let within = self.within.map(Duration::try_from_secs_f64).transpose();
        let Ok(within) = within else {
            bail!("--within {}: it must be a number of seconds, 0 or more", self.within.unwrap_or_default());
        };
        let within_ms = within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        let api = connection.api().await?;
        let mut notices = api.listen(&subjects::worker_notice(self.worker.as_str())).await?;
        let request = DrainWorker { worker: self.worker, within_ms };
        let _: DrainWorker = api.call("drain", &request).await?;
        let until = Instant::now() + PATIENCE;
        let mut is_alive = false;
        while let Ok(Some(notice)) = timeout_at(until, notices.next()).await {
            is_alive = true;
            if serde_json::from_slice(&notice.payload).is_ok_and(|notice: WorkerNotice| notice.leaving) {
                say(format_args!("{} leaves; it finishes or returns its tasks", request.worker));
                return Ok(ExitCode::SUCCESS);
            }
        }
        let (worker, waited) = (&request.worker, PATIENCE.as_secs());
        if is_alive {
            bail!("worker {worker} was asked, and does not leave; its log may tell why (an older version?)");
        }
        bail!("worker {worker} did not report within {waited} s: it has left, or no worker has this name");
    }
}
