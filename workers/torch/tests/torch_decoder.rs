//! The decoder, its engine and its trainer, on real libtorch. One binary, since linking it takes a
//! while.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "torch_decoder/algorithm_steps.rs"]
mod algorithm_steps;
#[path = "torch_decoder/algorithms.rs"]
mod algorithms;
#[path = "torch_decoder/conformance.rs"]
mod conformance;
#[path = "torch_decoder/critic.rs"]
mod critic;
#[path = "torch_decoder/draws.rs"]
mod draws;
#[path = "torch_decoder/engine.rs"]
mod engine;
#[path = "torch_decoder/files.rs"]
mod files;
#[path = "torch_decoder/forward.rs"]
mod forward;
#[path = "torch_decoder/gang.rs"]
mod gang;
#[path = "torch_decoder/half.rs"]
mod half;
#[path = "torch_decoder/hostile.rs"]
mod hostile;
#[path = "torch_decoder/math.rs"]
mod math;
#[path = "torch_decoder/models.rs"]
mod models;
#[path = "torch_decoder/sharing.rs"]
mod sharing;
#[path = "torch_decoder/speed.rs"]
mod speed;
#[path = "torch_decoder/step.rs"]
mod step;
#[path = "torch_decoder/support.rs"]
mod support;
#[path = "torch_decoder/swap.rs"]
mod swap;
