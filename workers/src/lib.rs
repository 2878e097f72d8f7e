//! How it is done: one run loop for every stage, and an executor for each, in the order of a task's life.

pub mod executor;
pub mod worker;
pub mod run_loop;
mod settle;
mod panics;
pub mod in_hand;
pub mod heartbeat;
pub mod drain;
pub mod policies;
mod members;
pub mod counters;

pub mod command;
mod name;
pub mod arguments;
pub mod stages;
pub mod generate;
pub mod env_step;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;

pub mod gang;
pub mod policy;
mod held;
pub mod weights;
pub mod datasets;
pub mod text;
pub mod model_dir;
pub mod envs;
pub mod rewards;
pub mod program;
pub mod math;
pub mod random;

pub use executor::{Cost, Executor, Verdict};
pub use policies::PolicyTable;
pub use stages::Executors;
pub use worker::{PoolSettings, Worker, WorkerSettings};
