//! Kernels of the decoder on a CPU. A crate of their own, so that a change of one compiles no other C++.

mod bridge;

pub use bridge::{
    Own, Pages, Turn, attend_rows, gate, has_bf16_products, limit_lanes, multiply, multiply_rows, normalise,
    pack, turn_heads,
};
