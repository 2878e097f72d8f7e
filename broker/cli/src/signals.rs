//! Ctrl-C, SIGTERM, and a terminal that closes.

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals that ask the process to end.
pub(super) struct Signals([Signal; 3]);

impl Signals {
    /// Handles the signals from now on; without this they kill the process.
    ///
    /// # Errors
    /// Signals cannot be listened to.
    pub(super) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen to signals");
        Ok(Self([
            listen(SignalKind::interrupt())?,
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
