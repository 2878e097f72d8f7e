//! The engine and the trainer of a decoder on libtorch. Only this crate and the kernels need it.
//!
//! - `libtorch`, `memory`, `gpu_kernels`: how this process uses libtorch, and a GPU;
//! - `engine`, `sampling`: turns, batched and drawn;
//! - `trainer`: optimiser steps, alone or as a member of a gang;
//! - `decoder`: the model that both compute;
//! - `math`: the formulas of training;
//! - `gang`: collectives among members.

pub mod libtorch;
mod gpu_kernels;
mod memory;

pub mod engine;
pub mod sampling;
pub mod trainer;
pub mod decoder;
pub mod math;
pub mod gang;

pub use engine::{EngineSettings, TorchEngine, TorchWeights, set_cache_share};
pub use gpu_kernels::set_gpu_kernels;
pub use libtorch::{set_device, set_threads};
pub use millrace_kernels::cuda::allow_tf32;
pub use millrace_kernels::trace::trace;
pub use sampling::{Draw, Drawn, draw, uniform};
pub use trainer::TorchTrainer;
