//! The fold: `state = fold(advance, log)`. It is pure: no clock, no randomness, no client, no
//! runtime.
//!
//! An event is folded in three parts. Each part depends only on those before it:
//!
//! 1. `stages/` describes tasks: which task a phase needs, and what the outcome of that task
//!    changes;
//! 2. `intake/` applies the event: it finds the run, the group and the rollout, and changes them;
//! 3. `decide/` makes the decisions that follow from the changed state, in a fixed order.
//!
//! `advance.rs` puts the three together.

// The state.
pub mod seeds;
pub mod rows;
pub mod command;
pub mod window;
pub mod gang;
pub mod spread;
pub mod rollout;
pub mod calls;
pub mod milestone;
pub mod books;
pub mod stored;
pub mod state;
pub mod domains;
pub mod status;
pub mod demand;

// Which task a phase needs, and what its outcome changes.
pub mod pools;
pub mod context;
pub mod purge;
pub mod policy;
pub mod stages;
pub mod tasks;
pub mod outstanding;

// Changes to a run that several events and decisions share.
pub mod groups;
pub mod staleness;
pub mod lifecycle;

pub mod intake;
pub mod decide;
pub mod advance;

pub use command::Command;
pub use state::State;
