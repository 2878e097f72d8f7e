//! One new token of each lane on CUDA: kernels around and between the matrix products, products of few rows, and forwards that
//! are captured once and replayed. The kernels are in `rows.cu`, compiled at run time for the device that there is. On tensors
//! of a CPU the same source runs in an emulation of blocks and warps, slowly: for tests. None takes gradients.

mod bridge;

pub use bridge::{
    BLOCK, Cells, Graphs, Heads, MOST_ROWS, OwnStream, ROW_WORDS, StepRow, allow_tf32, attend, draw, embed,
    free_bytes, gate, has_device, multiply, multiply_gated, normalise, use_device, wait,
};
