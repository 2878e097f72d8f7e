//! Programs that nobody trusts, run behind walls and within limits: what is asked, what is told,
//! and the way to the program `millrace-sandbox`, which does it. That is a program of its own
//! because it has to start within milliseconds, with one thread, and with nothing of the worker in
//! its memory. `job.rs` and `run.rs` are for one program at a time, `live` for sandboxes that stay,
//! `egress` for the hosts that those may reach.

pub mod groups;
pub mod job;
pub mod run;
pub mod live;
pub mod egress;
mod memory;

pub use job::{End, File, Job, Limits, Line, Protection, Ran, Run};
pub use run::{Sandbox, SandboxError, SandboxSlot};
