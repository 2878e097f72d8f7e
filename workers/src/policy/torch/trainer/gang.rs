//! What a trainer asks of the others that make a step with it.

use tch::Tensor;

use crate::policy::PolicyError;

/// A member's view of its gang.
pub trait Gang {
    /// This member, below [`Self::world`].
    fn rank(&self) -> usize;

    /// Members.
    fn world(&self) -> usize;

    /// Replaces `tensor` on every member by the sum over all members.
    ///
    /// # Errors
    /// A member was lost; the step is void.
    fn add_up(&self, tensor: &mut Tensor) -> Result<(), PolicyError>;
}

/// A gang of one.
#[derive(Debug, Clone, Copy, Default)]
pub struct Alone;

impl Gang for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world(&self) -> usize {
        1
    }

    fn add_up(&self, _tensor: &mut Tensor) -> Result<(), PolicyError> {
        Ok(())
    }
}
