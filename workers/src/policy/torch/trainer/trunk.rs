//! The layers of one forward, and backward through them. With recomputation only what goes into each layer is kept,
//! and backward computes the layer again: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.

use tch::{Kind, Tensor};

use crate::policy::decoder::{Decoder, Packed, Rows, Shared};

/// A forward that waits for its backward.
#[derive(Debug)]
pub(super) struct Trunk<'a> {
    decoder: &'a Decoder,
    rows: &'a Rows,
    attend: &'a mut Packed,
    shared: Shared,
    /// What each stretch of layers was given; its gradient comes to it. The last stretch is in `hidden`'s graph.
    inputs: Vec<Tensor>,
    /// Layers before the last stretch, each a stretch of its own.
    recomputed: usize,
    hidden: Tensor,
}

impl<'a> Trunk<'a> {
    /// Goes forward. With `recompute` no layer leaves anything behind but its input.
    pub(super) fn forward(
        decoder: &'a Decoder,
        rows: &'a Rows,
        attend: &'a mut Packed,
        recompute: bool,
    ) -> Self {
        let shared = decoder.shared(rows);
        let mut x = tch::no_grad(|| decoder.embed(rows));
        let recomputed = if recompute { decoder.depth() } else { 0 };
        let mut inputs = Vec::with_capacity(recomputed + 1);
        for layer in 0..recomputed {
            let next = tch::no_grad(|| decoder.layer(layer, &x, &shared, attend));
            inputs.push(std::mem::replace(&mut x, next));
        }
        let first = x.set_requires_grad(true);
        let mut x = first.shallow_clone();
        for layer in recomputed..decoder.depth() {
            x = decoder.layer(layer, &x, &shared, attend);
        }
        let hidden = decoder.finish(&x);
        inputs.push(first);
        Self { decoder, rows, attend, shared, inputs, recomputed, hidden }
    }

    /// The wanted rows as the head is given them, without gradient. `[M, width]`
    pub(super) fn hidden(&self) -> Tensor {
        self.hidden.detach()
    }

    /// Goes backward from the gradient of [`Self::hidden`]: adds to the gradients of all layers' weights, and gives
    /// the embedding's, `[vocabulary, width]` of f32.
    pub(super) fn backward(self, gradient: &Tensor) -> Tensor {
        let Self { decoder, rows, attend, shared, mut inputs, recomputed, hidden } = self;
        let mut next = || inputs.pop().expect("each stretch has an input");
        back(&hidden, gradient);
        drop(hidden);
        let mut gradient = next().grad();
        for layer in (0..recomputed).rev() {
            let input = next().set_requires_grad(true);
            back(&decoder.layer(layer, &input, &shared, attend), &gradient);
            gradient = input.grad();
        }
        let vocabulary = decoder.config().vocab_size;
        let gradient = gradient.to_kind(Kind::Float);
        Tensor::embedding_dense_backward(&gradient, &rows.tokens, vocabulary, -1, false)
    }
}

/// Backward from `output` with this gradient: that of `Σ output · gradient` is the same.
fn back(output: &Tensor, gradient: &Tensor) {
    (output * gradient).sum(Kind::Float).backward();
}

/// The wanted rows as the head is given them, and nothing for a backward. `[M, width]`
pub(super) fn look(decoder: &Decoder, rows: &Rows, attend: &mut Packed) -> Tensor {
    tch::no_grad(|| {
        let shared = decoder.shared(rows);
        let mut x = decoder.embed(rows);
        for layer in 0..decoder.depth() {
            x = decoder.layer(layer, &x, &shared, attend);
        }
        decoder.finish(&x)
    })
}
