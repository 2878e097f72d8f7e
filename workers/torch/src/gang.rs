//! Collectives among the members of a gang, over libtorch's own `c10d`.

mod bridge;
pub mod group;

pub use bridge::Listen;
pub(crate) use bridge::{Reducer, Work, add_gradient_to, drop_gradient};
pub use group::Group;
pub(crate) use millrace_policy::gang::{GangError, RankAssignment};
