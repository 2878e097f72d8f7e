//! SIGTERM and SIGINT: the first one requests the departure. A process that replaces itself by the same
//! program holds them back meanwhile: process 1 of a container never sees one that comes before its handler.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{SignalKind, signal};

use super::drain::Departure;

/// Says whether a signal came.
#[derive(Debug)]
pub struct Signals(Arc<AtomicBool>);

impl Signals {
    /// Requests the departure at the first signal. A second one ends the process at once.
    ///
    /// # Errors
    /// The process cannot listen to the signals.
    pub fn heed(departure: Departure) -> io::Result<Self> {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let came = Arc::new(AtomicBool::new(false));
        for number in &held() {
            signal_hook::flag::register(number as i32, came.clone())?;
        }
        // A process that started itself again has held them back until now.
        held().thread_unblock()?;
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
                departure.request("signal", None);
            }
        });
        Ok(Self(came))
    }

    /// Holds signals back in this thread, the last one of the process that heeds any. Returns whether one
    /// came before.
    ///
    /// # Errors
    /// The system refuses.
    pub fn hold(&self) -> io::Result<bool> {
        held().thread_block()?;
        Ok(self.0.load(Ordering::SeqCst))
    }
}

fn held() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT])
}
