//! Leaving in good order: SIGTERM or SIGINT stops the pulling. Tasks in flight are finished within
//! the grace period, or returned to the queue.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::in_flight::InFlight;

/// Time to return unfinished tasks to the queue.
const RETURN: Duration = Duration::from_secs(5);

/// Fires at the first SIGTERM or SIGINT. A second one ends the process at once.
///
/// # Errors
/// The process cannot listen to the signals.
pub fn on_signal() -> io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let fired = stop.clone();
    tokio::spawn(async move {
        for is_second in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if is_second {
                tracing::warn!("second signal; leaving at once");
                std::process::exit(1);
            }
            tracing::info!("signal to leave; finishing the tasks in flight");
            fired.cancel();
        }
    });
    Ok(stop)
}

/// Waits for the loops to end after `stop`: at first for `grace`, then with all tasks cancelled,
/// which returns them to the queue. Returns whether all tasks were settled.
pub(super) async fn drain(
    stop: &CancellationToken,
    grace: Duration,
    in_flight: &InFlight,
    loops: impl Future<Output = ()>,
) -> bool {
    let mut loops = std::pin::pin!(loops);
    tokio::select! {
        biased;
        () = &mut loops => return true,
        () = async { stop.cancelled().await; tokio::time::sleep(grace).await } => {}
    }
    tracing::warn!(?grace, "grace period over; returning the tasks in flight to the queue");
    in_flight.cancel_all();
    tokio::time::timeout(RETURN, loops).await.is_ok()
}
