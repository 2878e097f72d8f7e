//! Signs of life for all tasks in hand, from one task of its own: no executor can forget them, and a task
//! that takes microseconds costs none.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::MissedTickBehavior;

use crate::in_hand::InHand;

/// Heartbeats that are on their way at once.
const IN_FLIGHT: usize = 64;

/// Consumes time, produces a heartbeat for every task in hand once in `every`. Waits for the timer; a
/// heartbeat that fails is logged, for the next may arrive. Ends never.
pub async fn run(in_hand: Arc<InHand>, every: Duration) {
    let mut timer = tokio::time::interval(every);
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        timer.tick().await;
        let beats = futures::stream::iter(in_hand.leases()).for_each_concurrent(IN_FLIGHT, async |lease| {
            match tokio::time::timeout(every, lease.heartbeat()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "heartbeat failed"),
                Err(_) => tracing::warn!("heartbeat did not go out in time"),
            }
        });
        beats.await;
    }
}
