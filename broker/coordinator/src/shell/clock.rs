//! The one clock of a coordinator. The fold never reads it: time enters the log as ticks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Milliseconds since 1970. It is passed in, so that a simulation can control it.
#[derive(Clone)]
pub struct UnixClock {
    now: Arc<dyn Fn() -> u64 + Send + Sync>,
    machine: MachineClock,
}

impl UnixClock {
    /// A clock that reads `now`, in milliseconds since 1970, on a machine that is never suspended.
    #[must_use]
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self { now: Arc::new(now), machine: MachineClock::default() }
    }

    /// The same on another machine.
    #[must_use]
    pub fn on(self, machine: MachineClock) -> Self {
        Self { machine, ..self }
    }

    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(unix_ms).on(MachineClock::new(Instant::now, Some(Arc::new(since_boot))))
    }

    /// The other clocks of the same machine.
    #[must_use]
    pub fn machine(&self) -> MachineClock {
        self.machine.clone()
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

/// A clock that also runs while the machine is suspended: the time since boot.
pub type BootClock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The clocks of a machine that nobody sets. All its processes share them.
#[derive(Clone)]
pub struct MachineClock {
    /// It stands still while the machine is suspended, as `CLOCK_MONOTONIC`.
    monotonic: Arc<dyn Fn() -> Instant + Send + Sync>,
    /// It does not, as `CLOCK_BOOTTIME`; `None` without such a clock.
    boot: Option<BootClock>,
}

impl MachineClock {
    /// A machine with these clocks.
    #[must_use]
    pub fn new(monotonic: impl Fn() -> Instant + Send + Sync + 'static, boot: Option<BootClock>) -> Self {
        Self { monotonic: Arc::new(monotonic), boot }
    }

    /// Now, by the clock that stands still during suspension.
    #[must_use]
    pub fn now(&self) -> Instant {
        (self.monotonic)()
    }

    /// Time since boot by the clock that runs during suspension; `None` without such a clock.
    #[must_use]
    pub fn since_boot(&self) -> Option<Duration> {
        self.boot.as_ref().map(|boot| boot())
    }
}

/// A machine that is never suspended.
impl Default for MachineClock {
    fn default() -> Self {
        Self::new(Instant::now, None)
    }
}

impl fmt::Debug for MachineClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MachineClock")
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
