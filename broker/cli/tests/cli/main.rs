//! The `millrace` command as a person uses it: real processes, a real nats-server. In one program:
//! each further program would link the libraries a second time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

mod data;
mod plan;
mod rewards;
mod documents;
mod check;
mod api;
mod up;
mod rollouts;
mod gang;
mod time_division;
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
mod plain_nats;
mod agents;
mod hung;
