//! The engine and the trainer of a decoder on libtorch. Only this crate and the kernels need it.
//!
//! - `libtorch`, `memory`: how this process uses libtorch;
//! - `engine`, `sampling`: turns, batched and drawn;
//! - `trainer`: optimiser steps, alone or as a member of a gang;
//! - `decoder`: the model that both compute;
//! - `math`: the formulas of training;
//! - `gang`: collectives among members.

pub mod libtorch;
mod memory;

pub mod engine;
pub mod sampling;
pub mod trainer;
pub mod decoder;
pub mod math;
pub mod gang;

pub use engine::{EngineSettings, TorchEngine};
pub use libtorch::set_threads;
pub use sampling::{Draw, Drawn, draw, uniform};
pub use trainer::TorchTrainer;
