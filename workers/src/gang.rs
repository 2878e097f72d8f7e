//! Train workers that make one optimiser step together: how the members of a formation find one another, and
//! what they say when one of them is lost. A formation has a name that is never used again, so that nothing of
//! an earlier one can be mistaken for its own.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

pub mod memory;
pub mod keys;
#[cfg(feature = "torch")]
mod bridge;
#[cfg(feature = "torch")]
pub mod group;

#[cfg(feature = "torch")]
pub use bridge::Listen;
#[cfg(feature = "torch")]
pub(crate) use bridge::{Reducer, add_gradient_to};
#[cfg(feature = "torch")]
pub use group::Group;
pub use keys::KeyRendezvous;
pub use memory::MemoryRendezvous;

/// The first pause between two looks at a key, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// Where the members of a gang leave what they need to find one another: small values under keys, seen by all
/// of them. Called from the trainer's thread or from libtorch's, never from async code, so it may block.
pub trait Rendezvous: Send + Sync + fmt::Debug {
    /// Puts `value` under `key`, over what is there.
    ///
    /// # Errors
    /// It is not stored.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), GangError>;

    /// What is under `key` now.
    ///
    /// # Errors
    /// It cannot be said.
    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, GangError>;

    /// Waits until something is under `key`: looks again and again, ever less often. Unblocked by the value, the
    /// deadline or `cancel`.
    ///
    /// # Errors
    /// Nothing came until `deadline`, which means that a member is lost; or as [`Self::get`].
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

/// One member's place in a gang.
#[derive(Debug, Clone)]
pub struct RankAssignment {
    /// Names the formation, unique for ever: `<run>.<number>`.
    pub gang: String,
    /// This member, below `world`.
    pub rank: u32,
    /// Members; 1 or more.
    pub world: u32,
    /// How long a member may be silent before it counts as lost. It covers the time that one member computes
    /// while another waits for it.
    pub timeout: Duration,
    /// Ends whatever waits for the others.
    pub cancel: CancellationToken,
    /// Where the members find one another.
    pub rendezvous: Arc<dyn Rendezvous>,
}

/// Why the members did not get through something together. The step that they were at is void.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GangError {
    /// A member is gone, or was silent for longer than the assignment allows.
    #[error("a member of the gang is lost: {0}")]
    Lost(String),
    /// This member was told to stop.
    #[error("told to leave the gang")]
    Cancelled,
    /// What the members find one another by does not answer.
    #[error("the rendezvous failed: {0}")]
    Rendezvous(String),
    /// The members are not at the same thing: they hold tasks of different steps.
    #[error("the members of the gang disagree: {0}")]
    Disagree(String),
}

#[cfg(test)]
mod tests;
