//! The one clock of a coordinator. The fold never reads it: time enters the log as ticks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::shell::leader::BootClock;

/// Milliseconds since 1970. It is passed in, so that a simulation can control it.
#[derive(Clone)]
pub struct UnixClock {
    now: Arc<dyn Fn() -> u64 + Send + Sync>,
    boot: Option<BootClock>,
}

impl UnixClock {
    /// A clock that reads `now`, in milliseconds since 1970.
    #[must_use]
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), boot: None }
    }

    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self { boot: Some(since_boot), ..Self::new(unix_ms) }
    }

    /// A clock of the same machine that also runs while the machine is suspended.
    #[must_use]
    pub const fn boot(&self) -> Option<BootClock> {
        self.boot
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        (self.now)()
    }
}

impl fmt::Debug for UnixClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UnixClock")
    }
}

/// Now, in milliseconds since 1970, by the machine's clock.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the leader writes ticks: here time enters the log")]
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

/// Time since boot, including suspension; zero if unknown, as on machines without `/proc`.
fn since_boot() -> Duration {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
}
