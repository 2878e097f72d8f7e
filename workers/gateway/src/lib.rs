//! The gateway for agents: a program that asks a model over HTTP plays a rollout, unmodified. Each of
//! its calls becomes an observation, and the turn that the fold has sampled becomes the answer.
//!
//! In the order of a call's life:
//!
//! - `server` takes it, and finds its session by the key;
//! - `dialect` reads it: chat completions, messages, responses; and writes the answer;
//! - `conversation` finds what is new in it since the turn before, as tokens;
//! - `tool_calls` finds calls of tools in a turn's text;
//! - `session` hands observations to the fold's steps and turns to the agent;
//! - `host` starts and ends agents; `process` is what they run in, `folder` their files, `score` their
//!   reward.

mod refusal;
mod call;
mod server;
mod dialect;
mod conversation;
mod tool_calls;
mod session;
pub mod host;
mod process;
mod folder;
mod score;
#[cfg(test)]
mod testing;

pub use call::{Call, Reply};
pub use host::{Agents, AgentsSettings, BeginError, SessionName, Start};
pub use process::{Ended, Gateway, Place, PlaceError, Plain, Program, Running, Sandboxed, Walls};
pub use session::{Board, Phase, Session, Step};
