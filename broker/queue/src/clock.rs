//! Time for the memory queue. The caller supplies it, so that a test or a simulator decides when
//! leases expire.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

/// A clock that starts at zero.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Time since the clock's start.
    fn now(&self) -> Duration;

    /// Waits until `now() >= at`.
    async fn sleep_until(&self, at: Duration);
}

/// The machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// Starts at zero now.
    #[must_use]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    async fn sleep_until(&self, at: Duration) {
        tokio::time::sleep_until(self.start + at).await;
    }
}

/// A clock that moves only when a caller advances it. Clones show the same time.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<watch::Sender<Duration>>,
}

impl ManualClock {
    /// A clock at zero.
    #[must_use]
    pub fn new() -> Self {
        Self { now: Arc::new(watch::Sender::new(Duration::ZERO)) }
    }

    /// Advances the time by `step` and wakes all that wait for a time up to then.
    pub fn advance(&self, step: Duration) {
        self.now.send_modify(|now| *now += step);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.borrow()
    }

    async fn sleep_until(&self, at: Duration) {
        let mut now = self.now.subscribe();
        now.wait_for(|now| *now >= at).await.expect("the clock holds its own sender");
    }
}
