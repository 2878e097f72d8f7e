//! How it is done: one run loop for every stage, and an executor for each, in the order of a task's life.

pub mod random;
pub mod weights;
pub mod math;
pub mod policy;
pub mod envs;
pub mod rewards;
