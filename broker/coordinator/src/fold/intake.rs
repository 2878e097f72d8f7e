//! Takes events in: finds what an event is about and changes it. What follows from the change is decided in `decide`.

pub mod failures;
pub mod held_out;
pub mod rollouts;
pub mod adopt;
pub mod awaited;
pub mod worn;
pub mod resume;
pub mod members;
pub mod outcomes;
