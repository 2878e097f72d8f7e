//! How tasks are done: one run loop for every stage, and an executor for each.
//!
//! The rooms, in the order of a task's life:
//!
//! - `command` parses the command line and puts the parts together;
//! - `runtime` takes tasks from the queue and settles them;
//! - `stages` maps each stage to its executor, which has a file of the stage's name;
//! - `agent` hosts the programs of the environment `agent`;
//! - `envs`, `rewards`, `program`, `mcp` and `policy` are what the executors are made of;
//! - `torch` has engines and trainers for decoders, where this build has libtorch;
//! - `model` fetches versions of a policy.
//!
//! What an engine and a trainer are is defined in `millrace-policy`.

pub mod command;
pub mod runtime;

pub mod stages;
pub mod generate;
pub mod env_step;
pub mod agent;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;

pub mod envs;
pub mod rewards;
pub mod program;
pub mod mcp;
mod process_group;
pub mod policy;
#[cfg(feature = "torch")]
pub mod torch;
#[cfg(not(feature = "torch"))]
#[path = "without_torch.rs"]
pub mod torch;
pub mod model;
pub mod machine;

pub use runtime::{
    Cost, Departure, Executor, Failure, PolicyTable, PoolSettings, Retry, Verdict, Worker, WorkerSettings,
};
pub use stages::Executors;
