//! Heartbeats of a worker that trains. The coordinator assigns ranks in gangs to workers that send
//! them.

use std::sync::Arc;
use std::time::Duration;

use millrace_queue::Broker;
use millrace_schemas::WorkerId;
use millrace_schemas::limits::{MEMBER_BEAT_MS, MEMBER_MS};
use millrace_schemas::member::Heartbeat;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::executor::Executor;

/// Until the second heartbeat. It is early, because the first alone may be left from an earlier
/// process.
const SECOND: Duration = Duration::from_millis(100);

/// Heartbeats in a row without an answer that are worth a line in the log: a late one costs
/// nothing.
const WORTH_SAYING: u64 = 2;
/// As many later the log says so again.
const AGAIN: u64 = 60;

/// Consumes time, produces heartbeats while the trainer is well. Waits for the timer. Those that
/// fail in a row are logged, for the next may arrive. When `stop` fires it ends, after a heartbeat
/// that announces that the worker leaves.
pub(super) async fn send_heartbeats(
    broker: Broker,
    worker: WorkerId,
    instance: String,
    trainer: Arc<dyn Executor>,
    stop: CancellationToken,
) {
    let mut heartbeat = Heartbeat { instance, beat: 0, leaving: false };
    let mut missed = 0;
    send(&broker, &worker, &heartbeat, &mut missed).await;
    let every = Duration::from_millis(MEMBER_BEAT_MS);
    let mut timer = tokio::time::interval_at(Instant::now() + SECOND, every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(timer.tick()).await.is_some() {
        if trainer.is_well() {
            heartbeat.beat += 1;
            send(&broker, &worker, &heartbeat, &mut missed).await;
        } else {
            tracing::error!("the trainer's thread does not answer; sending no heartbeats until it does");
        }
    }
    heartbeat.beat += 1;
    heartbeat.leaving = true;
    send(&broker, &worker, &heartbeat, &mut missed).await;
}

/// Sends one. `missed` counts those in a row that had no answer.
async fn send(broker: &Broker, worker: &WorkerId, heartbeat: &Heartbeat, missed: &mut u64) {
    let every = Duration::from_millis(MEMBER_BEAT_MS);
    let reason = match tokio::time::timeout(every, broker.sign_of_life(worker, heartbeat)).await {
        Ok(Ok(())) => {
            *missed = 0;
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {every:?}"),
    };
    *missed += 1;
    if *missed % AGAIN == WORTH_SAYING {
        tracing::warn!(missed, reason, "member heartbeats fail; after {MEMBER_MS} ms its rank is another's");
    }
}
