//! The run loop on a queue in memory and on a real nats-server: how each task is settled, for every
//! verdict and failure of its executor.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;
mod verdicts;
mod failures;
mod staleness;
mod drain;
mod partitions;
mod time_division;
