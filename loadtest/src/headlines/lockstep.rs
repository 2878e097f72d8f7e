//! Rounds of a synchronous baseline: everything that was begun is over before anything else begins.
//! Millrace itself never does this; the published baselines do.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;

/// A round is over when nothing has been at work for this long. It is part of every round, and more
/// than a task's way through the queue takes.
pub(super) const QUIET: Duration = Duration::from_millis(60);

/// Where tasks wait for each other.
pub(super) struct Lockstep {
    /// Tasks at work now, and tasks begun so far.
    work: watch::Sender<(usize, u64)>,
    round: watch::Sender<u64>,
}

/// A task at work, until it is dropped.
pub(super) struct AtWork<'a>(&'a Lockstep);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.work.send_modify(|(now, _)| *now -= 1);
    }
}

impl Lockstep {
    pub(super) fn new() -> Self {
        Self { work: watch::Sender::new((0, 0)), round: watch::Sender::new(0) }
    }

    /// Counts a task as at work.
    pub(super) fn works(&self) -> AtWork<'_> {
        self.work.send_modify(|(now, begun)| (*now, *begun) = (*now + 1, *begun + 1));
        AtWork(self)
    }

    /// Waits until every task waits here or is over.
    pub(super) async fn others(&self) {
        let mut round = self.round.subscribe();
        tokio::select! {
            _ = round.changed() => {}
            () = self.quiet() => self.round.send_modify(|round| *round += 1),
        }
    }

    async fn quiet(&self) {
        let mut work = self.work.subscribe();
        loop {
            let Ok(at) = work.wait_for(|(now, _)| *now == 0).await.map(|at| *at) else { return };
            sleep(QUIET).await;
            if *self.work.borrow() == at {
                return;
            }
        }
    }
}
