//! Standing by: a worker that left at the coordinator's request, in a place that would start it again
//! at once, waits without work until it is ended or needed.

use std::time::Duration;

use millrace_queue::Broker;
use millrace_schemas::limits::WORKER_REPORT_MS;
use millrace_schemas::notice::{StageCounters, WorkerNotice};
use millrace_schemas::{Stage, WorkerId, subjects};
use tokio::time::Instant;

use super::drain::Departure;
use super::drain_requests;

/// A worker that left.
#[derive(Debug)]
pub struct StandBy {
    /// Where it says that it stands by.
    pub broker: Broker,
    /// Its name.
    pub worker: WorkerId,
    /// The pool of workers that it belongs to.
    pub member_of: Option<String>,
    /// What it would serve.
    pub stages: Vec<Stage>,
    /// The start of its process.
    pub start: Instant,
}

impl StandBy {
    /// Waits until something ends this process, or the worker is needed: the coordinator recalls it, or
    /// `longest` is over. Returns whether it is needed. Meanwhile its notices say that it stands by.
    pub async fn is_needed(self, departure: &Departure, longest: Duration) -> bool {
        if longest.is_zero() {
            return false;
        }
        let mut report = tokio::time::interval(Duration::from_millis(WORKER_REPORT_MS));
        let telling = async {
            loop {
                report.tick().await;
                self.tell(true).await;
            }
        };
        let needed = tokio::select! {
            biased;
            () = departure.ends().cancelled() => false,
            () = drain_requests::recalled(&self.broker, &self.worker) => true,
            () = tokio::time::sleep(longest) => true,
            () = telling => unreachable!("it tells for ever"),
        };
        // A leader that counts on it would recall it in vain.
        self.tell(false).await;
        needed
    }

    async fn tell(&self, stands_by: bool) {
        let stages = self.stages.iter().map(|stage| (*stage, StageCounters::default()));
        let notice = WorkerNotice {
            worker: self.worker.to_string(),
            uptime_ms: self.start.elapsed().as_millis() as u64,
            pool: self.member_of.clone(),
            leaving: true,
            stands_by,
            stages: stages.collect(),
            ..WorkerNotice::default()
        };
        self.broker.notice(subjects::worker_notice(self.worker.as_str()), &notice).await;
    }
}
