//! The one clock of a coordinator. Decisions never see it: it enters the log as ticks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::shell::leader::BootClock;

/// Tells milliseconds since 1970; handed in, so that a simulator may turn it.
#[derive(Clone)]
pub struct UnixClock {
    now: Arc<dyn Fn() -> u64 + Send + Sync>,
    boot: Option<BootClock>,
}

impl UnixClock {
    /// A clock that says what `now` says, in milliseconds since 1970.
    #[must_use]
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), boot: None }
    }

    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self { boot: Some(since_boot), ..Self::new(unix_ms) }
    }

    /// The clock of the same machine that goes on while it sleeps.
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
#[expect(
    clippy::disallowed_methods,
    reason = "the coordinator that acts writes ticks: here time enters the log"
)]
pub fn unix_ms() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_millis() as u64)
}

/// Since the machine began, its sleep included; zero where it does not say, as where it has no `/proc`.
fn since_boot() -> Duration {
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let seconds = uptime.split_whitespace().next().and_then(|seconds| seconds.parse().ok());
    Duration::try_from_secs_f64(seconds.unwrap_or(0.0)).unwrap_or_default()
}
