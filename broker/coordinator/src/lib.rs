//! Decides what happens next. All decisions are a fold over the log:
//!
//! ```text
//! state = fold(advance, log)        advance(&mut State, Event) -> Vec<Command>
//! ```
//!
//! `advance` is pure: no clock, no randomness, no client. `driver.rs` is the one async loop around it.

pub mod state;
pub mod rollout;
pub mod stored;
pub mod books;
pub mod domains;
pub mod window;
pub mod spread;
pub mod gang;
pub mod command;
pub mod pipeline;
pub mod outstanding;
pub mod status;
pub mod shared;
pub mod clock;
pub mod adopt;
pub mod journal;
pub mod collect;
pub mod lanes;
pub mod execute;
pub mod leader;
pub mod members;
pub mod report;
pub mod driver;
pub mod api;

pub mod audit;
pub mod cli;

pub use command::Command;
pub use state::State;
