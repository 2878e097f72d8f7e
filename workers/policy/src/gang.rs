//! Gangs: train workers that make one optimiser step together. The rendezvous lets members find one
//! another, and errors tell that one is lost.
//! A *formation* is a gang's present make-up: its members and their ranks. Each has a name that is
//! never used again, so that nothing of an earlier one is mistaken for its own.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

mod memory;

pub use memory::MemoryRendezvous;

/// Pause between two reads of a key: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// A key-value store through which the members of a gang find one another. Values are small and all
/// members see them. Calls come from the trainer's thread or from libtorch's, never from async
/// code, so they may block.
pub trait Rendezvous: Send + Sync + fmt::Debug {
    /// Writes `value` under `key`, over an earlier one.
    ///
    /// # Errors
    /// It is not stored.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), GangError>;

    /// The value under `key` now.
    ///
    /// # Errors
    /// It cannot be read.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, GangError>;

    /// Waits until `key` has a value: polls, with growing pauses. Unblocked by the value, the
    /// deadline or `cancel`.
    ///
    /// # Errors
    /// There is no value at `deadline`, which means that a member is lost; or as [`Self::get`].
    #[expect(clippy::disallowed_methods, reason = "a thread of its own waits here; there is no runtime")]
    fn wait(&self, key: &str, deadline: Instant, cancel: &CancellationToken) -> Result<Vec<u8>, GangError> {
        let mut pause = PAUSES.0;
        loop {
            if cancel.is_cancelled() {
                return Err(GangError::Cancelled);
            }
            if let Some(value) = self.get(key)? {
                return Ok(value);
            }
            if Instant::now() >= deadline {
                return Err(GangError::Lost(format!("nothing came under key={key}")));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// One member's rank in a formation, and what it needs to join.
#[derive(Debug, Clone)]
pub struct RankAssignment {
    /// Name of the formation, never used again: `<run>.<number>`.
    pub gang: String,
    /// This member's rank, below `world`.
    pub rank: u32,
    /// Members of the formation; 1 or more.
    pub world: u32,
    /// How long a member may be silent before it counts as lost. This includes the time in which
    /// one member computes while another waits for it.
    pub timeout: Duration,
    /// Ends all waits for other members.
    pub cancel: CancellationToken,
    /// Shared by all members.
    pub rendezvous: Arc<dyn Rendezvous>,
}

/// Why a collective or a rendezvous failed. The step is void.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GangError {
    /// A member is gone, or was silent for longer than the timeout.
    #[error("a member of the gang is lost: {0}")]
    Lost(String),
    /// This member was cancelled.
    #[error("this member was cancelled")]
    Cancelled,
    /// The rendezvous cannot be reached.
    #[error("the rendezvous failed: {0}")]
    Rendezvous(String),
    /// The members have tasks of different steps.
    #[error("the members of the gang disagree: {0}")]
    Disagree(String),
}

#[cfg(test)]
mod tests;
