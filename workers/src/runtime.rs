//! The runtime: takes tasks from the queue, keeps their leases, and settles each with the verdict
//! of its executor.
//!
//! It knows the queue, tasks and their staleness. It does not know what a stage computes, with two
//! exceptions: the generate pool has partitions (`run_loop`), and a worker that trains sends
//! heartbeats as a member of gangs (`membership`). No file here imports from another room of this
//! crate.
//!
//! The modules are private. Stages use four names: they implement [`Executor`], return a
//! [`Verdict`] with its [`Cost`], and read policies from the [`PolicyTable`]. A stage with a thread
//! of its own also uses `panic_message`. The other names are for the program that starts a
//! [`Worker`].

mod executor;
mod worker;
mod run_loop;
mod settlement;
mod panics;
mod in_flight;
mod heartbeat;
mod drain;
mod policy_table;
mod membership;
mod counters;

pub use drain::on_signal;
pub use executor::{Cost, Executor, Verdict};
pub(crate) use panics::panic_message;
pub use policy_table::{PolicyTable, PolicyWatch, policies};
pub use worker::{PoolSettings, Worker, WorkerSettings};
