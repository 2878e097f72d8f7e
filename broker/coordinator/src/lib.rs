//! The coordinator decides what happens next. All decisions are a fold over the log:
//!
//! ```text
//! state = fold(advance, log)        advance(&mut State, Event) -> Vec<Command>
//! ```
//!
//! `fold` is pure: no clock, no randomness, no client. `shell` is everything around it.
//! `shell/driver.rs` is the one async loop that feeds it.

pub mod fold;
pub mod shell;

pub use fold::{Command, State};
