//! Applies events: finds what an event is about and changes it. `decide` determines what follows
//! from the change.

pub mod failures;
pub mod held_out;
pub mod rollouts;
pub mod adopt;
pub mod awaited;
pub mod exhausted;
pub mod resume;
pub mod members;
pub mod outcomes;
