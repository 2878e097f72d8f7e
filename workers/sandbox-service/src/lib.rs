//! Sandboxes over HTTP: `keys.rs` says who asks, `service.rs` what there is, `hosted.rs`, `session.rs`
//! and `commands.rs` are one sandbox, one shell and the commands in it, `sessions.rs` bounds a
//! sandbox's shells, `foreground.rs` is a program that talks in one, `size.rs` reads sizes as ROCK
//! writes them, `moments.rs` writes times, `images.rs` finds and stores images, `loads.rs` bounds how
//! many are loaded at once, `commits.rs` makes them of sandboxes, `stopped.rs` keeps what stopped ones
//! left, `network.rs` opens the way to listed hosts, `ports.rs` the way to servers within, `rock`,
//! `gem` and `e2b` are protocols, `surfaces.rs` joins them.

pub mod keys;
pub mod size;
mod moments;
mod foreground;
mod session;
mod sessions;
mod commands;
mod hosted;
mod loads;
pub mod images;
mod commits;
mod stopped;
pub mod network;
mod ports;
pub mod service;
mod rock;
pub mod gem;
mod e2b;
pub mod surfaces;
