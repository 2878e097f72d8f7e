//! What is asked of an engine, whichever library computes it: turns, sampled one token after
//! another. An engine has one thread, which owns all of a model's state.

use std::any::Any;

use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_schemas::{PolicyVersion, RolloutId};

use crate::PolicyError;

/// Names a request while an engine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One turn to sample.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// Unique within the engine.
    pub ticket: Ticket,
    /// The rollout: its next turn has this turn's context as a prefix.
    pub rollout: RolloutId,
    /// What to sample. The engine's version is at least `min_version`, the context not empty. A turn
    /// that another worker began is continued.
    pub task: GenerateTask,
}

/// A request that an engine is done with.
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub ticket: Ticket,
    /// The turn, or the error of this request alone.
    pub result: Result<GenerateDone, PolicyError>,
}

/// Weights of a version, read and verified on any thread, so that no engine waits for it.
pub trait ReadyWeights: Any + Send {
    /// Which version it is.
    fn version(&self) -> PolicyVersion;

    /// An engine that samples with them, on the thread that will own it.
    ///
    /// # Errors
    /// Memory is short.
    fn into_engine(self: Box<Self>) -> Result<Box<dyn Engine>, PolicyError>;
}

/// Samples turns with the weights of one run: continuous batching. All calls come from one thread,
/// so an engine need not be `Send`.
pub trait Engine {
    /// Swaps to these weights between two steps. Requests in flight keep their tokens and continue
    /// under the new weights, so that a turn may have several segments. The KV cache of the old
    /// weights is dropped: contexts are prefilled again.
    ///
    /// # Errors
    /// The weights are another kind of engine's, or memory is short. The caller drops the engine
    /// and retries its requests.
    fn swap(&mut self, weights: Box<dyn ReadyWeights>) -> Result<(), PolicyError>;

    /// Adds a request to the batch.
    fn admit(&mut self, request: EngineRequest);

    /// Drops a request. Returns what it sampled of the turn so far, with [`Finish::Partial`]; `None`
    /// for a request that failed and for unknown tickets.
    ///
    /// [`Finish::Partial`]: millrace_schemas::generate::Finish::Partial
    fn abandon(&mut self, ticket: Ticket) -> Option<GenerateDone>;

    /// Samples about one token for each request in flight, and returns the requests that ended with
    /// it. Never waits. The caller repeats it while there are requests.
    ///
    /// # Errors
    /// The engine is broken. The caller drops it and retries its requests.
    fn step(&mut self) -> Result<Vec<Finished>, PolicyError>;

    /// Releases the device's memory, because a trainer needs it: the weights go to the host's, the
    /// KV cache is dropped. No request is in flight. Then comes [`Self::swap`] or
    /// [`Self::return_to_device`] before any other call.
    ///
    /// # Errors
    /// They could not be moved.
    fn leave_device(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }

    /// Brings the weights back to the device.
    ///
    /// # Errors
    /// The device has no room. The caller retries.
    fn return_to_device(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// The weights as those of an engine's own kind.
///
/// # Errors
/// They are another's.
pub fn own_weights<W: ReadyWeights>(weights: Box<dyn ReadyWeights>) -> Result<Box<W>, PolicyError> {
    let version = weights.version();
    let any: Box<dyn Any> = weights;
    let other = |_| PolicyError::Impossible(format!("version={version} is a model of another kind"));
    any.downcast().map_err(other)
}
