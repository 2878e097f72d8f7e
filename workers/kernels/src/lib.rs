//! Kernels of the decoder: on a CPU; in `cuda` those that sample on a GPU; in `training` those of a train
//! step there; in `trace` what shows where the time goes. A crate of their own, so that a change of one
//! compiles no other C++.

mod bridge;
mod tensors;
pub mod cuda;
pub mod training;
pub mod trace;

pub use bridge::{
    Own, Pages, Turn, attend_rows, gate, has_bf16_products, limit_lanes, multiply, multiply_rows, normalise,
    pack, turn_heads,
};
