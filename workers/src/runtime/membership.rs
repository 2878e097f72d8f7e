//! Signs of life of a worker that trains: by them the coordinator gives it places in gangs.

use std::sync::Arc;
use std::time::Duration;

use millrace_queue::Broker;
use millrace_schemas::WorkerId;
use millrace_schemas::limits::MEMBER_BEAT_MS;
use millrace_schemas::member::SignOfLife;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::executor::Executor;

/// The second sign comes early: the first alone may be anybody's.
const EARLY: Duration = Duration::from_millis(100);

/// Consumes time, produces signs of life while the trainer is well. Waits for the timer. A sign that fails is logged, for
/// the next may arrive. Ends when `stop` fires, with a sign that says so.
pub(super) async fn give_signs(
    broker: Broker,
    worker: WorkerId,
    instance: String,
    trainer: Arc<dyn Executor>,
    stop: CancellationToken,
) {
    let mut sign = SignOfLife { instance, beat: 0, leaving: false };
    say(&broker, &worker, &sign).await;
    let every = Duration::from_millis(MEMBER_BEAT_MS);
    let mut timer = tokio::time::interval_at(Instant::now() + EARLY, every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(timer.tick()).await.is_some() {
        if trainer.is_well() {
            sign.beat += 1;
            say(&broker, &worker, &sign).await;
        } else {
            tracing::error!("the trainer's thread does not answer; giving no signs of life until it does");
        }
    }
    sign.beat += 1;
    sign.leaving = true;
    say(&broker, &worker, &sign).await;
}

async fn say(broker: &Broker, worker: &WorkerId, sign: &SignOfLife) {
    let every = Duration::from_millis(MEMBER_BEAT_MS);
    match tokio::time::timeout(every, broker.sign_of_life(worker, sign)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "sign of life not given"),
        Err(_) => tracing::warn!("sign of life did not go out in time"),
    }
}
