//! Sandboxes over HTTP: `keys.rs` says who asks, `service.rs` what there is, `hosted.rs` and
//! `session.rs` are one sandbox and one shell in it, `size.rs` reads sizes as ROCK writes them,
//! `rock` is the protocol.

pub mod keys;
pub mod size;
mod session;
mod hosted;
pub mod service;
pub mod rock;
