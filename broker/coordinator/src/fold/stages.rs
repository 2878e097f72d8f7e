//! One file per stage: which task it puts, and what the outcome of that task changes. No stage decides what comes after.

pub mod submit;
pub mod generate;
pub mod env_step;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;
