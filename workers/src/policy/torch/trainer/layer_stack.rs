//! The layers of one forward, and backward through them. With recomputation only what goes into each layer is kept,
//! and backward computes the layer again: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.

use tch::{Kind, Tensor};

use crate::policy::decoder::{Decoder, LayerContext, Packed, Rows};

/// A forward that waits for its backward.
#[derive(Debug)]
pub(super) struct LayerStack<'a> {
    decoder: &'a Decoder,
    rows: &'a Rows,
    attend: &'a mut Packed,
    context: LayerContext,
    /// What each span of layers was given; its gradient comes to it. The last span is in `hidden`'s graph.
    inputs: Vec<Tensor>,
    /// Layers before the last span, each a span of its own.
    recomputed: usize,
    hidden: Tensor,
}

impl<'a> LayerStack<'a> {
    /// Goes forward. With `recompute` no layer leaves anything behind but its input.
    pub(super) fn forward(
        decoder: &'a Decoder,
        rows: &'a Rows,
        attend: &'a mut Packed,
        recompute: bool,
    ) -> Self {
        let context = decoder.layer_context(rows);
        let mut x = tch::no_grad(|| decoder.embed(rows));
        let recomputed = if recompute { decoder.depth() } else { 0 };
        let mut inputs = Vec::with_capacity(recomputed + 1);
        for layer in 0..recomputed {
            let next = tch::no_grad(|| decoder.layer(layer, &x, &context, attend));
            inputs.push(std::mem::replace(&mut x, next));
        }
        let first = x.set_requires_grad(true);
        let mut x = first.shallow_clone();
        for layer in recomputed..decoder.depth() {
            x = decoder.layer(layer, &x, &context, attend);
        }
        let hidden = decoder.finish(&x);
        inputs.push(first);
        Self { decoder, rows, attend, context, inputs, recomputed, hidden }
    }

    /// The logit_positions rows as the head is given them, without gradient. `[M, width]`
    pub(super) fn hidden(&self) -> Tensor {
        self.hidden.detach()
    }

    /// Goes backward from the gradient of [`Self::hidden`]: adds to the gradients of all layers' weights, and gives
    /// the embedding's, `[vocabulary, width]` of f32.
    pub(super) fn backward(self, gradient: &Tensor) -> Tensor {
        let Self { decoder, rows, attend, context, mut inputs, recomputed, hidden } = self;
        let mut next = || inputs.pop().expect("each span has an input");
        back(&hidden, gradient);
        drop(hidden);
        let mut gradient = next().grad();
        for layer in (0..recomputed).rev() {
            let input = next().set_requires_grad(true);
            back(&decoder.layer(layer, &input, &context, attend), &gradient);
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

/// The logit_positions rows as the head is given them, and nothing for a backward. `[M, width]`
pub(super) fn look(decoder: &Decoder, rows: &Rows, attend: &mut Packed) -> Tensor {
    tch::no_grad(|| {
        let context = decoder.layer_context(rows);
        let mut x = decoder.embed(rows);
        for layer in 0..decoder.depth() {
            x = decoder.layer(layer, &x, &context, attend);
        }
        decoder.finish(&x)
    })
}
