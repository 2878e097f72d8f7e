//! Time division: one device that generates and trains in turn. When a step needs the device, the
//! turns on it end with what was sampled and are handed back (shrink). When the step is over,
//! generating continues (expand).
//!
//! The trainer decides, by [`TimeDivision::begin_step`]: it has a share of a step, whose batch is
//! cut. Generating holds a [`SampledTurn`] for each turn in flight, and pulls no tasks while its
//! gate is closed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millrace_schemas::limits::{DEVICE_RELEASE_MS, SHRINK_MS};
use millrace_schemas::notice::DeviceUse;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};
use tokio_util::sync::CancellationToken;

/// Time for turns to end with what was sampled. After that they are returned to the queue.
const SHRINK: Duration = Duration::from_millis(SHRINK_MS);
/// Time for the engine to release the device, once it has no turns.
const RELEASE: Duration = Duration::from_millis(DEVICE_RELEASE_MS);

/// The engine's side of a device that is shared.
#[async_trait]
pub trait Tenant: Send + Sync + 'static {
    /// Releases the device's memory. No turn is in flight.
    ///
    /// # Errors
    /// It cannot, for the returned reason.
    async fn leave(&self) -> Result<(), String>;

    /// The device is free again. Does not wait.
    fn come_back(&self);
}

/// Why a step does not get the device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReleased {
    /// The engine does not answer. Until it does, this worker neither generates nor trains.
    #[error("the engine did not release the device within {0:?}")]
    Stuck(Duration),
    /// The engine cannot release it.
    #[error("the engine cannot release the device: {0}")]
    Refused(String),
}

/// A device that is shared by the generate and the train stage of one worker. Clones are the same
/// device.
#[derive(Clone)]
pub struct TimeDivision(Arc<DivisionCore>);

struct DivisionCore {
    state: Mutex<DeviceState>,
    /// Turns in flight.
    turns: watch::Sender<usize>,
    may_generate: watch::Sender<bool>,
    may_train: watch::Sender<bool>,
    /// One step at a time has the device.
    steps: Arc<AsyncMutex<()>>,
    /// Fires when the worker leaves.
    leaving: CancellationToken,
    engine: OnceLock<Arc<dyn Tenant>>,
}

struct DeviceState {
    now: DeviceUse,
    /// Of the turns that begin now.
    ends: TurnEnds,
}

/// Tells turns to end.
#[derive(Debug, Clone)]
struct TurnEnds {
    hand_back: CancellationToken,
    abandon: CancellationToken,
}

impl Default for TimeDivision {
    fn default() -> Self {
        let leaving = CancellationToken::new();
        let ends = TurnEnds::new(&leaving);
        Self(Arc::new(DivisionCore {
            state: Mutex::new(DeviceState { now: DeviceUse::Generates, ends }),
            turns: watch::Sender::new(0),
            may_generate: watch::Sender::new(true),
            may_train: watch::Sender::new(true),
            steps: Arc::default(),
            leaving,
            engine: OnceLock::new(),
        }))
    }
}

impl fmt::Debug for TimeDivision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimeDivision").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl TurnEnds {
    fn new(leaving: &CancellationToken) -> Self {
        Self { hand_back: leaving.child_token(), abandon: CancellationToken::new() }
    }
}

impl TimeDivision {
    fn state(&self) -> MutexGuard<'_, DeviceState> {
        // A panic cannot leave it half changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the device does now.
    #[must_use]
    pub fn now(&self) -> DeviceUse {
        self.state().now
    }

    /// Sets the engine that has to release the device. Without one, no turn in flight suffices.
    pub fn set_engine(&self, engine: Arc<dyn Tenant>) {
        // There is one generate stage in a worker.
        let _ = self.0.engine.set(engine);
    }

    /// Whether tasks to generate may be pulled.
    #[must_use]
    pub fn may_generate(&self) -> watch::Receiver<bool> {
        self.0.may_generate.subscribe()
    }

    /// Whether steps may be pulled: not while the engine is stuck.
    #[must_use]
    pub fn may_train(&self) -> watch::Receiver<bool> {
        self.0.may_train.subscribe()
    }

    /// Whether a step could get the device.
    #[must_use]
    pub fn is_well(&self) -> bool {
        *self.0.may_train.borrow()
    }

    /// Counts a turn as in flight until it is dropped. While the device does not generate, its
    /// tokens have fired already.
    #[must_use]
    pub fn begin_turn(&self) -> SampledTurn {
        // Under the lock: a shrink counts every turn whose tokens it does not see.
        let state = self.state();
        self.0.turns.send_modify(|turns| *turns += 1);
        SampledTurn { ends: state.ends.clone(), device: self.clone() }
    }

    /// The worker leaves: all turns end with what was sampled, also those that begin later.
    pub fn leave(&self) {
        self.0.leaving.cancel();
    }

    /// Takes the device for a step: turns in flight are handed back, then the engine releases its
    /// memory. Generating continues when the returned value is dropped, or this future.
    ///
    /// # Errors
    /// The engine does not release the device. Generating continues as soon as the engine can.
    pub async fn begin_step(&self) -> Result<StepTurn, NotReleased> {
        let only = self.0.steps.clone().lock_owned().await;
        let turn = StepTurn { device: self.clone(), _only: only };
        self.shrink().await;
        let Some(engine) = self.0.engine.get().cloned() else {
            self.uses(DeviceUse::Trains);
            return Ok(turn);
        };
        // On its own: if the engine answers late or the step is cancelled, generating continues
        // after the answer and not before.
        let mut released = tokio::spawn(async move { engine.leave().await.map(|()| turn) });
        match tokio::time::timeout(RELEASE, &mut released).await {
            Ok(Ok(Ok(turn))) => {
                self.uses(DeviceUse::Trains);
                Ok(turn)
            }
            Ok(Ok(Err(reason))) => Err(NotReleased::Refused(reason)),
            Ok(Err(panicked)) => Err(NotReleased::Refused(panicked.to_string())),
            Err(_) => {
                self.0.may_train.send_replace(false);
                // After that: an answer that came by now opens the gates again.
                drop(released);
                Err(NotReleased::Stuck(RELEASE))
            }
        }
    }

    /// Ends the turns in flight, and waits until there is none.
    async fn shrink(&self) {
        let ends = {
            let mut state = self.state();
            state.now = DeviceUse::Shrinks;
            state.ends.clone()
        };
        self.0.may_generate.send_replace(false);
        ends.hand_back.cancel();
        let mut turns = self.0.turns.subscribe();
        // The sender lives as long as this device.
        if tokio::time::timeout(SHRINK, turns.wait_for(|turns| *turns == 0)).await.is_err() {
            let turns = *self.0.turns.borrow();
            tracing::warn!(turns, "turns did not end in time; returning them to the queue as they began");
            ends.abandon.cancel();
            let _ = self.0.turns.subscribe().wait_for(|turns| *turns == 0).await;
        }
    }

    fn uses(&self, now: DeviceUse) {
        self.state().now = now;
    }

    /// Generating continues.
    fn expand(&self) {
        if let Some(engine) = self.0.engine.get() {
            engine.come_back();
        }
        {
            let mut state = self.state();
            state.now = DeviceUse::Generates;
            state.ends = TurnEnds::new(&self.0.leaving);
        }
        self.0.may_train.send_replace(true);
        self.0.may_generate.send_replace(true);
    }
}

/// A turn in flight on the device.
#[derive(Debug)]
pub struct SampledTurn {
    ends: TurnEnds,
    device: TimeDivision,
}

impl SampledTurn {
    /// Fires when the turn must end with what was sampled.
    #[must_use]
    pub const fn hand_back(&self) -> &CancellationToken {
        &self.ends.hand_back
    }

    /// Fires when the turn must end at once, without what was sampled.
    #[must_use]
    pub const fn abandon(&self) -> &CancellationToken {
        &self.ends.abandon
    }
}

impl Drop for SampledTurn {
    fn drop(&mut self) {
        self.device.0.turns.send_modify(|turns| *turns -= 1);
    }
}

/// A step that has the device. Dropping it lets generating continue.
#[derive(Debug)]
pub struct StepTurn {
    device: TimeDivision,
    _only: OwnedMutexGuard<()>,
}

impl Drop for StepTurn {
    fn drop(&mut self) {
        self.device.expand();
    }
}

#[cfg(test)]
mod tests;
