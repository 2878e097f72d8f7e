//! Metrics of the streams: how full each is, and how many servers have all of it.

use std::time::Duration;

use millrace_queue::{JetStream, QueueError, StreamReport};
use millrace_schemas::{Stage, subjects};
use tokio::time::MissedTickBehavior;

/// Interval between two reports.
const EVERY: Duration = Duration::from_secs(10);

/// Asks the server about each stream once in [`EVERY`].
///
/// Consumes: the timer. Produces: metrics. Waits for: the timer and the server. Never ends. On
/// failure: the stream counts as without a current copy until the next report.
pub(super) async fn report(queue: &JetStream) {
    let streams: Vec<String> = subjects::streams().collect();
    let mut timer = tokio::time::interval(EVERY);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        for stream in &streams {
            set(stream, &queue.stream_report(stream).await);
        }
    }
}

fn set(stream: &str, report: &Result<StreamReport, QueueError>) {
    let labels = [("stream", stream.to_owned())];
    let current = report.as_ref().map_or(0, |report| report.current);
    metrics::gauge!("millrace_stream_current_copies", &labels).set(f64::from(current));
    let Ok(report) = report else { return };
    metrics::gauge!("millrace_stream_copies", &labels).set(f64::from(report.copies));
    metrics::gauge!("millrace_stream_messages", &labels).set(report.messages as f64);
    metrics::gauge!("millrace_stream_bytes", &labels).set(report.bytes as f64);
    if let Some(bytes) = report.max_bytes {
        metrics::gauge!("millrace_stream_max_bytes", &labels).set(bytes as f64);
    }
    let of_stage = Stage::QUEUED.into_iter().find(|stage| subjects::task_stream(*stage) == stream);
    if let Some(stage) = of_stage {
        metrics::gauge!("millrace_tasks_outstanding", "stage" => stage.name()).set(report.messages as f64);
    }
}
