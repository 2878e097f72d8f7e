//! How tasks are done: one run loop for every stage, and an executor for each.
//!
//! The rooms, in the order of a task's life:
//!
//! - `command` parses the command line and puts the parts together;
//! - `runtime` takes tasks from the queue and settles them;
//! - `stages` maps each stage to its executor, which has a file of the stage's name;
//! - `envs`, `rewards`, `program`, `gang`, `policy` and `math` are what the executors are made of;
//! - `model` reads versions of a policy and model directories.

pub mod command;
pub mod runtime;

pub mod stages;
pub mod generate;
pub mod env_step;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;

pub mod envs;
pub mod rewards;
pub mod program;
pub mod gang;
pub mod policy;
pub mod math;
pub mod model;
pub mod random;

pub use runtime::{Cost, Executor, PolicyTable, PoolSettings, Verdict, Worker, WorkerSettings};
pub use stages::Executors;
