//! Heartbeats for all tasks in flight. They come from one async task, so that no executor can
//! forget them, and a task that takes microseconds costs none.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use super::in_flight::InFlight;

/// Heartbeats that wait for the queue's answer at once, at most.
const CONCURRENT: usize = 64;

/// Consumes time, produces a heartbeat for every task in flight a few times in a lease, and at
/// least once in `at_most`. Waits for the timer, or until a pool's leases turn out to be shorter. A
/// heartbeat that fails is logged, for the next may arrive. Never ends.
pub(super) async fn run(in_flight: Arc<InFlight>, at_most: Duration) {
    let mut interval = in_flight.heartbeat_interval();
    loop {
        let pause = interval.borrow_and_update().map_or(at_most, |interval| interval.min(at_most));
        let leases = futures::stream::iter(in_flight.leases());
        let beats = leases.for_each_concurrent(CONCURRENT, async |lease| {
            match tokio::time::timeout(pause, lease.heartbeat()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "heartbeat failed"),
                Err(_) => tracing::warn!("heartbeat not acknowledged in time"),
            }
        });
        beats.await;
        // The channel cannot close: its sender is in `in_flight`.
        let _ = tokio::time::timeout(pause, interval.changed()).await;
    }
}
