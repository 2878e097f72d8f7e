//! Until when a coordinator may act.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// A clock that goes on while the machine sleeps: the time since it began.
pub type BootClock = fn() -> Duration;

/// Until when this process may act without asking again, and with which epoch. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Term {
    held: Arc<Mutex<Held>>,
    /// Where the usual clock stands still while the machine sleeps.
    boot: Option<BootClock>,
}

#[derive(Debug, Default)]
struct Held {
    until: Option<Instant>,
    /// The same by the clock that goes on while the machine sleeps.
    awake_until: Option<Duration>,
    epoch: u64,
}

impl Term {
    /// A term that a machine's sleep ends too.
    #[must_use]
    pub fn on(boot: Option<BootClock>) -> Self {
        Self { held: Arc::default(), boot }
    }

    /// Whether it may act now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.has_begun(&self.held())
    }

    fn has_begun(&self, held: &Held) -> bool {
        let awake = match (self.boot, held.awake_until) {
            (Some(boot), Some(until)) => boot() < until,
            _ => true,
        };
        awake && held.until.is_some_and(|until| Instant::now() < until)
    }

    /// The epoch that its writes carry; 0 before it first led.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.held().epoch
    }

    /// May act until then. Says whether the term was over before, or is of another epoch: whatever was left undone
    /// since then is to be done now.
    pub fn extend(&self, until: Instant, epoch: u64) -> bool {
        let mut held = self.held();
        let again = !self.has_begun(&held) || held.epoch != epoch;
        let left = until.saturating_duration_since(Instant::now());
        let awake_until = self.boot.map(|boot| boot() + left);
        *held = Held { until: Some(until), awake_until, epoch };
        again
    }

    /// May not act any more.
    pub fn end(&self) {
        self.held().until = None;
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        // A time cannot be left half written.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    static BOOTED_MS: AtomicU64 = AtomicU64::new(0);

    fn booted() -> Duration {
        Duration::from_millis(BOOTED_MS.load(Ordering::Relaxed))
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_slept_for_a_lease_holds_none() {
        let term = Term::on(Some(booted));
        assert!(term.extend(Instant::now() + Duration::from_secs(2), 1), "it begins");
        assert!(term.holds());
        // The usual clock stands still meanwhile.
        BOOTED_MS.store(2_000, Ordering::Relaxed);
        assert!(!term.holds());
        assert!(term.extend(Instant::now() + Duration::from_secs(2), 1), "something may be left undone");
        assert!(term.holds());
    }
}
