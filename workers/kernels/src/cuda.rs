//! Decoding steps of one new token a lane on CUDA. `rows.cu` has products of few rows, norms, SwiGLU and
//! embedding; `attention.cu` attention; `draw.cu` sampling. NVRTC compiles them for the device at run time.
//! `device.cc` captures a forward once and replays it. `emulated.cc` runs the same source on a CPU, slowly, for
//! tests. None has gradients.

mod bridge;

pub use bridge::{
    BLOCK, Cells, Graphs, Heads, MOST_ROWS, OwnStream, ROW_WORDS, StepRow, allow_tf32, attend, draw, embed,
    free_bytes, gate, has_device, multiply, multiply_gated, normalise, use_device, wait,
};
