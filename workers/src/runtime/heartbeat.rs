//! Signs of life for all tasks in hand, from one task of its own: no executor can forget them, and a task
//! that takes microseconds costs none.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;

use super::in_flight::InHand;

/// Heartbeats that are on their way at once.
const IN_FLIGHT: usize = 64;

/// Consumes time, produces a heartbeat for every task in hand a few times in a lease, and at least once in
/// `every`. Waits for the timer, or for news of shorter leases; a heartbeat that fails is logged, for the next may
/// arrive. Ends never.
pub(super) async fn run(in_hand: Arc<InHand>, every: Duration) {
    let mut pace = in_hand.pace();
    loop {
        let pause = pace.borrow_and_update().map_or(every, |pace| pace.min(every));
        let beats = futures::stream::iter(in_hand.leases()).for_each_concurrent(IN_FLIGHT, async |lease| {
            match tokio::time::timeout(pause, lease.heartbeat()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "heartbeat failed"),
                Err(_) => tracing::warn!("heartbeat did not go out in time"),
            }
        });
        beats.await;
        // The sender lives in what this holds.
        let _ = tokio::time::timeout(pause, pace.changed()).await;
    }
}
