//! The decoder, its engine and its trainer, on real libtorch. One binary, since linking it takes a
//! while.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod algorithm_steps;
mod algorithms;
mod conformance;
mod critic;
mod draws;
mod engine;
mod files;
mod forks;
mod forward;
mod gang;
mod gpu_steps;
mod half;
mod hostile;
mod math;
mod models;
mod one_pass;
mod sharing;
mod speed;
mod step;
mod support;
mod swap;
mod trace;
