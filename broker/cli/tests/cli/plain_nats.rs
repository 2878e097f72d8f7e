//! Millrace through plain NATS: clients that know NATS and JSON and nothing else.

mod processes;

mod nats_cli;
mod nats_py;
