//! What ties a process to the queue and the object store. Through it a process is paused, cut off or killed.

use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_queue::QueueError;
use tokio::time::{Instant, sleep, sleep_until};

use super::scenario::FaultKind;
use super::world::World;

/// A handle. Clones share it.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) world: Arc<World>,
    state: Arc<Mutex<LinkState>>,
}

struct LinkState {
    dead: bool,
    paused_until: Instant,
    cut_until: Instant,
}

impl Link {
    pub(super) fn new(world: Arc<World>) -> Self {
        let now = Instant::now();
        let state = LinkState { dead: false, paused_until: now, cut_until: now };
        Self { world, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing that still runs of this process reaches anything any more.
    pub(super) fn kill(&self) {
        self.state().dead = true;
    }

    pub(super) fn pause(&self, length: Duration) {
        self.state().paused_until = Instant::now() + length;
    }

    /// Pauses it at least until then.
    pub(super) fn pause_until(&self, until: Instant) {
        let mut state = self.state();
        state.paused_until = state.paused_until.max(until);
    }

    pub(super) fn is_dead(&self) -> bool {
        self.state().dead
    }

    pub(super) fn cut(&self, length: Duration) {
        self.state().cut_until = Instant::now() + length;
    }

    /// Ends pause and partition.
    pub(super) fn mend(&self) {
        let now = Instant::now();
        let mut state = self.state();
        (state.paused_until, state.cut_until) = (now, now);
    }

    /// Waits while the process is paused; for ever once it is dead.
    pub(super) async fn awake(&self) {
        loop {
            let (dead, until) = {
                let state = self.state();
                (state.dead, state.paused_until)
            };
            if dead {
                pending::<()>().await;
            }
            if until <= Instant::now() {
                return;
            }
            // In pieces, for a pause may be ended early.
            sleep_until(until.min(Instant::now() + Duration::from_millis(500))).await;
        }
    }

    /// Whether nothing gets through to the object store.
    pub(super) fn is_cut(&self) -> bool {
        self.state().cut_until > Instant::now()
    }

    /// Whether nothing gets through to the queue.
    pub(super) fn is_off(&self) -> bool {
        self.is_cut() || self.world.has(FaultKind::Outage)
    }

    /// Waits while the process is paused. Fails in its own time where nothing gets through to the queue.
    pub(super) async fn reaches(&self, action: &'static str) -> Result<(), QueueError> {
        self.awake().await;
        if self.is_off() {
            return self.lost(action, "no connection").await;
        }
        Ok(())
    }

    /// A request to the queue, with all that may happen to it on its way.
    pub(super) async fn call<T, F>(&self, action: &'static str, op: impl Fn() -> F) -> Result<T, QueueError>
    where
        F: Future<Output = Result<T, QueueError>>,
    {
        let world = &self.world;
        self.awake().await;
        sleep(world.time(0, 3)).await;
        if world.strikes(FaultKind::Slow) {
            sleep(world.time(100, 9_000)).await;
        }
        // Requests of a suspended process arrive when it wakes, even if another process leads by
        // then.
        self.awake().await;
        if self.is_off() {
            return self.lost(action, "no connection").await;
        }
        if world.strikes(FaultKind::RequestLost) {
            return self.lost(action, "the request got lost").await;
        }
        let mut answer = op().await;
        if world.strikes(FaultKind::RequestTwice) {
            sleep(world.time(0, 50)).await;
            answer = op().await;
        }
        if world.strikes(FaultKind::AnswerLost) {
            return self.lost(action, "the answer got lost").await;
        }
        self.awake().await;
        answer
    }

    /// Time goes by until the process hears that there is no answer.
    pub(super) async fn lost<T>(&self, action: &'static str, reason: &str) -> Result<T, QueueError> {
        sleep(self.world.time(10, 3_000)).await;
        self.awake().await;
        Err(QueueError::Unavailable { action, reason: reason.to_owned() })
    }
}
