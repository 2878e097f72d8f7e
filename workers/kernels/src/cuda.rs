//! Decoding steps of one new token a lane on CUDA. `rows.cu` has products of few rows, norms, SwiGLU and
//! embedding; `attention.cu` attention; `draw.cu` sampling. NVRTC compiles them for the device at run time.
//! `graphs.cc` captures a forward once and replays it. `emulated.cc` runs the same source on a CPU, slowly, for
//! tests. None has gradients.

mod bridge;
mod graphs;

pub use bridge::{
    BLOCK, Cells, Heads, MOST_ROWS, ROW_WORDS, StepRow, attend, draw, embed, gate, has_device, multiply,
    multiply_gated, normalise,
};
pub use graphs::{Graphs, OwnStream, allow_tf32, free_bytes, use_device, wait};
