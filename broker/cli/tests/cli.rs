//! The `millrace` command as a person uses it: real processes, a real nats-server.

pub(crate) mod support;

mod data;
mod rewards;
mod documents;
mod api;
mod up;
mod gang;
mod kill;
mod traces;
mod older_store;
mod two;
mod autoscale;
mod roles;
mod program;
mod release;
mod bucket;
mod cluster;
mod hung;
