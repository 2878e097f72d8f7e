//! One file per stage: which task it queues, and what the outcome of that task changes. `decide`
//! determines what comes next.

pub mod submit;
pub mod generate;
pub mod env_step;
pub mod reward;
pub mod train_shard;
pub mod publish_weights;
