//! Leaving in good order: SIGTERM or SIGINT stops the pulling; what is in hand is finished within the grace
//! period, or handed back.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::in_flight::InHand;

/// Time to hand back what was not finished.
const HAND_BACK: Duration = Duration::from_secs(5);

/// Fires at the first SIGTERM or SIGINT. A second one ends the process at once.
///
/// # Errors
/// The signals cannot be listened to.
pub fn on_signal() -> io::Result<CancellationToken> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let fired = stop.clone();
    tokio::spawn(async move {
        for already in [false, true] {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if already {
                tracing::warn!("told to leave twice; leaving at once");
                std::process::exit(1);
            }
            tracing::info!("told to leave; finishing what is in hand");
            fired.cancel();
        }
    });
    Ok(stop)
}

/// Waits for the loops to end after `stop`: for `grace` as they like, then with everything cancelled, which
/// hands it back. Says whether all was settled.
pub(super) async fn drain(
    stop: &CancellationToken,
    grace: Duration,
    in_hand: &InHand,
    loops: impl Future<Output = ()>,
) -> bool {
    let mut loops = std::pin::pin!(loops);
    tokio::select! {
        biased;
        () = &mut loops => return true,
        () = async { stop.cancelled().await; tokio::time::sleep(grace).await } => {}
    }
    tracing::warn!(?grace, "not done within the grace period; handing back");
    in_hand.cancel_all();
    tokio::time::timeout(HAND_BACK, loops).await.is_ok()
}
