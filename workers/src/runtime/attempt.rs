//! The time of one attempt at a task. A task that waits for a slot of this worker (a sandbox, the
//! judge, a copy of a program) uses up none of it: otherwise attempts would expire while they wait,
//! and each would cost the task one of its few deliveries.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

tokio::task_local! {
    /// The attempt that this code belongs to.
    static CURRENT: Attempt;
}

/// The clock of one attempt. Clones share it.
#[derive(Debug, Clone)]
struct Attempt(watch::Sender<AttemptClock>);

#[derive(Debug, Clone, Copy)]
struct AttemptClock {
    end: Instant,
    /// Waits at once; the clock stands while there is one.
    waits: u32,
    /// Since when it stands.
    stands_since: Instant,
}

/// A wait of an attempt for a slot, during which its clock stands. It may end anywhere, and does on
/// drop.
#[derive(Debug)]
pub(crate) struct SlotWait {
    /// `None` outside of an attempt.
    attempt: Option<Attempt>,
    is_over: bool,
}

impl SlotWait {
    /// A wait of the attempt that asks.
    pub(crate) fn begin() -> Self {
        let mut wait = Self { attempt: CURRENT.try_with(Attempt::clone).ok(), is_over: true };
        wait.begin_again();
        wait
    }

    /// The slot was for nothing: another one is waited for.
    pub(crate) fn begin_again(&mut self) {
        if !std::mem::replace(&mut self.is_over, false) {
            return;
        }
        self.change(|clock| {
            if clock.waits == 0 {
                clock.stands_since = Instant::now();
            }
            clock.waits += 1;
        });
    }

    /// The slot is there.
    pub(crate) fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        self.change(|clock| {
            clock.waits -= 1;
            if clock.waits == 0 {
                clock.end += clock.stands_since.elapsed();
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut AttemptClock)) {
        if let Some(Attempt(clock)) = &self.attempt {
            clock.send_modify(change);
        }
    }
}

impl Drop for SlotWait {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits for a slot of this worker, which takes none of the attempt's time.
pub(crate) async fn wait_for_slot<T>(slot: impl Future<Output = T>) -> T {
    let _wait = SlotWait::begin();
    slot.await
}

/// Executes an attempt; `None` when it has taken `limit`, without its waits for slots.
pub(crate) async fn within<T>(limit: Duration, execution: impl Future<Output = T>) -> Option<T> {
    let now = Instant::now();
    let attempt = Attempt(watch::Sender::new(AttemptClock { end: now + limit, waits: 0, stands_since: now }));
    let expired = attempt.clone().expired();
    tokio::select! {
        biased;
        done = CURRENT.scope(attempt, execution) => Some(done),
        () = expired => None,
    }
}

impl Attempt {
    /// Waits for the end of its time, which each wait for a slot puts off.
    async fn expired(self) {
        let mut changes = self.0.subscribe();
        loop {
            let AttemptClock { end, waits, .. } = *changes.borrow_and_update();
            tokio::select! {
                () = sleep_until(end), if waits == 0 => return,
                changed = changes.changed() => changed.expect("this attempt holds the sender"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(120);

    async fn works(percent: u32) {
        sleep(LIMIT * percent / 100).await;
    }

    async fn waits(percent: u32) {
        wait_for_slot(works(percent)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_a_slot_uses_up_no_delivery() {
        assert_eq!(within(LIMIT, works(99)).await, Some(()));
        assert_eq!(within(LIMIT, works(101)).await, None);
        let waits_twice = |work: u32| async move {
            waits(1_000).await;
            works(work).await;
            waits(500).await;
            works(work).await;
        };
        assert_eq!(within(LIMIT, waits_twice(49)).await, Some(()), "its own time was enough");
        assert_eq!(within(LIMIT, waits_twice(51)).await, None, "the waits give it no other time");
        let side_by_side = async {
            tokio::join!(waits(300), waits(200));
            works(99).await;
        };
        assert_eq!(within(LIMIT, side_by_side).await, Some(()));
        let begun = Instant::now();
        let hangs = async {
            waits(100).await;
            std::future::pending::<()>().await;
        };
        assert_eq!(within(LIMIT, hangs).await, None);
        assert_eq!(begun.elapsed(), LIMIT * 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_may_end_elsewhere_and_begin_again() {
        let passed_on = async {
            let mut wait = SlotWait::begin();
            let elsewhere = tokio::spawn(async move {
                waits(200).await;
                wait.end();
                works(50).await;
                wait.begin_again();
                works(200).await;
            });
            elsewhere.await.expect("it does not panic");
            works(49).await;
        };
        assert_eq!(within(LIMIT, passed_on).await, Some(()));
    }
}
