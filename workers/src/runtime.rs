//! The runtime: takes tasks from the queue, keeps their leases, and settles each with the verdict
//! of its executor.
//!
//! It knows the queue, tasks and their staleness. It does not know what a stage computes, with two
//! exceptions: the generate pool has partitions (`run_loop`), and a worker that trains sends
//! heartbeats as a member of gangs (`membership`). No file here imports from another room of this
//! crate.
//!
//! The modules are private. Stages use four names: they implement [`Executor`], classify what goes
//! wrong into a [`Failure`], report their [`Cost`], and read policies from the [`PolicyTable`]. What
//! a failure means for the queue is a [`Verdict`]. A stage with a thread of its own also uses
//! `panic_message`, and one that waits for a slot of this worker says so by `wait_for_slot` or a
//! `SlotWait`. The other names are for the program that starts a
//! [`Worker`].

mod executor;
mod failure;
mod worker;
mod run_loop;
mod attempt;
mod settlement;
mod traced;
mod panics;
mod in_flight;
mod heartbeat;
mod drain;
mod drain_requests;
mod signals;
mod stand_by;
mod policy_table;
mod membership;
mod time_division;
mod counters;

#[cfg(test)]
pub(crate) use attempt::within;
pub(crate) use attempt::{SlotWait, wait_for_slot};
pub use drain::Departure;
pub use executor::{Cost, Executor, Verdict};
pub use failure::{Failure, Retry};
pub(crate) use panics::panic_message;
pub use policy_table::{PolicyTable, PolicyWatch, policies};
pub use signals::Signals;
pub use stand_by::StandBy;
pub use time_division::{NotReleased, SampledTurn, StepTurn, Tenant, TimeDivision};
pub use worker::{PoolSettings, Worker, WorkerSettings};
