//! A nats-server of our own, and how a child process dies with its parent.

pub mod process;
pub mod find;
mod port;
mod server;

pub use find::find_server;
pub use port::free_port;
pub use server::{ClusterMember, Server, ServerError, ServerOptions, write_config};
