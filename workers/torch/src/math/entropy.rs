//! Entropy of the next token.

use tch::Tensor;

/// `−Σ p log p` over the last axis, from log-probabilities `[…, V]`; gives `[…]`, in nats.
pub fn entropy(logprobs: &Tensor) -> Tensor {
    let dim = [-1_i64];
    -(logprobs.exp() * logprobs).sum_dim_intlist(dim.as_slice(), false, logprobs.kind())
}
