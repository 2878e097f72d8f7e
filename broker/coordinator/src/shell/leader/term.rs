//! The term within which a coordinator may act.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::shell::clock::MachineClock;

/// Until when this process may act before it renews the lease, and with which epoch. Clones share
/// it.
#[derive(Debug, Clone, Default)]
pub struct Term {
    held: Arc<Mutex<HeldTerm>>,
    /// Of this process's machine. An instant of the monotonic clock alone would not do: that clock
    /// stands still while the machine is suspended, and another coordinator leads meanwhile.
    machine: MachineClock,
}

#[derive(Debug, Default)]
struct HeldTerm {
    until: Option<Instant>,
    /// The same by the clock that runs during suspension.
    awake_until: Option<Duration>,
    epoch: u64,
}

impl Term {
    /// A term that also runs out while this machine is suspended.
    #[must_use]
    pub fn on(machine: MachineClock) -> Self {
        Self { held: Arc::default(), machine }
    }

    /// Now, by the clock that stands still while the machine is suspended.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.machine.now()
    }

    /// Whether it may act now.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.has_begun(&self.held())
    }

    fn has_begun(&self, held: &HeldTerm) -> bool {
        let awake = match (self.machine.since_boot(), held.awake_until) {
            (Some(now), Some(until)) => now < until,
            _ => true,
        };
        awake && held.until.is_some_and(|until| self.now() < until)
    }

    /// The epoch that its writes carry; 0 before it first leads.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.held().epoch
    }

    /// Extends the term to `until`, by [`Self::now`]. Returns whether the term was over before or is of another
    /// epoch: then outstanding commands have to be executed.
    pub fn extend(&self, until: Instant, epoch: u64) -> bool {
        let mut held = self.held();
        let restarted = !self.has_begun(&held) || held.epoch != epoch;
        let left = until.saturating_duration_since(self.now());
        let awake_until = self.machine.since_boot().map(|now| now + left);
        *held = HeldTerm { until: Some(until), awake_until, epoch };
        restarted
    }

    /// Ends the term: this process may not act.
    pub fn end(&self) {
        self.held().until = None;
    }

    fn held(&self) -> MutexGuard<'_, HeldTerm> {
        // No code panics between two writes.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_was_suspended_for_a_lease_holds_none() {
        let booted_ms = Arc::new(AtomicU64::new(0));
        let read = booted_ms.clone();
        let boot = Arc::new(move || Duration::from_millis(read.load(Ordering::Relaxed)));
        let term = Term::on(MachineClock::new(Instant::now, Some(boot)));
        assert!(term.extend(term.now() + Duration::from_secs(2), 1), "a new term");
        assert!(term.holds());
        // `Instant` stands still meanwhile.
        booted_ms.store(2_000, Ordering::Relaxed);
        assert!(!term.holds());
        assert!(term.extend(term.now() + Duration::from_secs(2), 1), "commands may be left undone");
        assert!(term.holds());
    }
}
