//! The `millrace` command: one file per command.

mod command;

mod connect;
mod context;
mod data;
mod worker;
mod term;
mod signals;

mod up;
mod submit;
mod check;
mod status;
mod watch;
mod pause;
mod cancel;
mod list;
mod ledger;
mod rollouts;
mod weights;
mod dead;
mod log;
mod objects;
mod bucket;
mod env;
mod scale;
mod plan;
mod schema;
mod completions;
mod doctor;
mod drain;
mod init_auth;
mod coordinator;
mod release;
pub mod tied;

mod follow;
mod busy;
mod waits;
mod domains;
mod evaluation;
mod live;
mod curve;
mod metrics;
mod report;
#[cfg(test)]
mod sample;

pub use command::main;
