//! A simulated machine: what its processes share. They sleep together while it is suspended.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_coordinator::shell::clock::{MachineClock, UnixClock};
use tokio::time::Instant;

use super::world::World;

/// A handle. Clones share it.
#[derive(Clone)]
pub(super) struct Machine {
    world: Arc<World>,
    /// When it booted.
    booted: Instant,
    sleep: Arc<Mutex<Sleep>>,
    /// Milliseconds that its clock of the day is off.
    off_ms: Arc<AtomicI64>,
}

/// The suspensions of a machine.
#[derive(Debug)]
struct Sleep {
    /// How long it slept before the last one.
    before: Duration,
    /// The last one, over or not.
    from: Instant,
    until: Instant,
}

impl Sleep {
    /// How long it has slept.
    fn slept(&self, now: Instant) -> Duration {
        self.before + now.min(self.until).saturating_duration_since(self.from)
    }
}

impl Machine {
    pub(super) fn new(world: Arc<World>) -> Self {
        let now = Instant::now();
        let sleep = Arc::new(Mutex::new(Sleep { before: Duration::ZERO, from: now, until: now }));
        Self { world, booted: now, sleep, off_ms: Arc::default() }
    }

    fn sleep(&self) -> MutexGuard<'_, Sleep> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this is the same machine.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.sleep, &other.sleep)
    }

    /// Suspends it. Its processes must be paused for as long.
    pub(super) fn suspend(&self, length: Duration) {
        let (now, mut sleep) = (Instant::now(), self.sleep());
        let until = sleep.until.max(now + length);
        *sleep = Sleep { before: sleep.slept(now), from: now, until };
    }

    /// Wakes it up.
    pub(super) fn wake(&self) {
        let mut sleep = self.sleep();
        sleep.until = sleep.until.min(Instant::now());
    }

    /// When its last suspension ends, or ended.
    pub(super) fn asleep_until(&self) -> Instant {
        self.sleep().until
    }

    /// Sets its clock of the day forward or back.
    pub(super) fn turn_clock(&self, by_ms: i64) {
        self.off_ms.fetch_add(by_ms, Relaxed);
    }

    /// Its clocks, for a process.
    pub(super) fn clock(&self) -> UnixClock {
        let (day, still, boot) = (self.clone(), self.clone(), self.booted);
        let clocks = MachineClock::new(move || still.monotonic(), Some(Arc::new(move || boot.elapsed())));
        UnixClock::new(move || day.world.unix_ms().saturating_add_signed(day.off_ms.load(Relaxed))).on(clocks)
    }

    /// The clock that stands still while it is suspended.
    fn monotonic(&self) -> Instant {
        let now = Instant::now();
        now - self.sleep().slept(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::scenario::Scenario;

    #[tokio::test(start_paused = true)]
    async fn one_clock_stands_still_while_the_machine_sleeps_and_the_others_run() {
        let machine = Machine::new(World::new(1, &Scenario::shipped()[0]));
        let (clock, start) = (machine.clock(), Instant::now());
        let read = || {
            let machine = clock.machine();
            let still = machine.now().saturating_duration_since(start).as_secs();
            (still, machine.since_boot().expect("it has one").as_secs(), clock.unix_ms() / 1_000)
        };
        let (_, _, day) = read();
        let pass = async |seconds| tokio::time::advance(Duration::from_secs(seconds)).await;
        pass(1).await;
        machine.suspend(Duration::from_secs(10));
        pass(4).await;
        assert_eq!(read(), (1, 5, day + 5));
        // Suspended again before the end: no second counts twice.
        machine.suspend(Duration::from_secs(10));
        pass(20).await;
        assert_eq!(read(), (1 + 10, 25, day + 25));
        machine.suspend(Duration::from_secs(100));
        pass(1).await;
        machine.wake();
        pass(2).await;
        assert_eq!(read(), (13, 28, day + 28));
    }
}
