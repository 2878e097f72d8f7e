//! SIGTERM and SIGINT: the first one requests the departure. A process that replaces itself by the same
//! program holds them back meanwhile: process 1 of a container never sees one that comes before its handler.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use signal_hook::{flag, low_level};
use tokio::io::AsyncReadExt;

use super::drain::Departure;

/// The signals of this process, since they are noted.
#[derive(Debug)]
pub struct Signals {
    /// Whether one came.
    came: Arc<AtomicBool>,
    /// Has a byte for each.
    each: UnixStream,
}

impl Signals {
    /// Notes signals from now on, also those that a process that started itself again held back. Call it
    /// before there is another thread: a thread, and a program that it starts, hold back what the thread that
    /// made it held back.
    ///
    /// # Errors
    /// The process cannot listen to the signals.
    pub fn note() -> io::Result<Self> {
        let came = Arc::new(AtomicBool::new(false));
        let (each, noted) = UnixStream::pair()?;
        for number in &held() {
            // First what requests the departure: nothing else tells of a signal that comes in between.
            low_level::pipe::register(number as i32, noted.try_clone()?)?;
            flag::register(number as i32, came.clone())?;
        }
        held().thread_unblock()?;
        Ok(Self { came, each })
    }

    /// Requests the departure at the first signal, at once if it came already. A second one ends the process
    /// at once.
    ///
    /// # Errors
    /// The process cannot listen to the signals.
    pub fn heed(&self, departure: Departure) -> io::Result<()> {
        let each = self.each.try_clone()?;
        each.set_nonblocking(true)?;
        let mut each = tokio::net::UnixStream::from_std(each)?;
        tokio::spawn(async move {
            for is_second in [false, true] {
                if let Err(error) = each.read_u8().await {
                    tracing::error!(%error, "signals are no longer heard");
                    return;
                }
                if is_second {
                    tracing::warn!("second signal; leaving at once");
                    std::process::exit(1);
                }
                departure.request("signal", None);
            }
        });
        Ok(())
    }

    /// Holds signals back in this thread, the last one of the process that heeds any. Returns whether one
    /// came before.
    ///
    /// # Errors
    /// The system refuses.
    pub fn hold(&self) -> io::Result<bool> {
        held().thread_block()?;
        Ok(self.came.load(Ordering::SeqCst))
    }
}

fn held() -> SigSet {
    SigSet::from_iter([Signal::SIGTERM, Signal::SIGINT])
}
