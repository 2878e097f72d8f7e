//! What a train step computes otherwise on CUDA than with libtorch's plain operators, with gradients:
//! attention of sequences of unlike lengths, the operations between matrix products in one pass each, the
//! head's softmax on logits in bf16, AdamW. On a CPU each computes the same, slowly: for tests.

mod bridge;

pub use bridge::{
    AdamW, Starts, adamw, attend_sequences, exponential_sums, gate, logits_gradient, turn_heads,
};
