//! The one clock of a coordinator. Decisions never see it: it enters the log as ticks.

use std::fmt;
use std::sync::Arc;

/// Tells milliseconds since 1970; handed in, so that a simulator may turn it.
#[derive(Clone)]
pub struct UnixClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl UnixClock {
    /// A clock that says what `now` says, in milliseconds since 1970.
    #[must_use]
    pub fn new(now: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self::new(unix_ms)
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub fn unix_ms(&self) -> u64 {
        (self.0)()
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
