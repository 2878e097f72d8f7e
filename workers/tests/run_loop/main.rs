//! The run loop on a queue in memory and on a real nats-server: what becomes of a task, whatever
//! its executor says or does.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod verdicts;
mod failures;
mod staleness;
mod drain;
mod partitions;
