//! The layers of one forward, and backward through them. With recomputation only the input of each
//! layer is kept, and backward computes the layer again: Chen et al., "Training Deep Nets with
//! Sublinear Memory Cost", 2016.

use millrace_schemas::submit::Algorithm;
use tch::{Device, Kind, Tensor};

use crate::decoder::{Decoder, LayerContext, Packed, Rows};

/// The layer stack after its forward, ready for its backward.
#[derive(Debug)]
pub(super) struct LayerStack<'a> {
    decoder: &'a Decoder,
    rows: &'a Rows,
    attend: &'a mut Packed,
    context: LayerContext,
    /// The input of each span of layers, which receives a gradient. The last span is in `hidden`'s
    /// graph.
    inputs: Vec<Tensor>,
    /// Layers before the last span; each is a span of its own.
    recomputed: usize,
    hidden: Tensor,
}

impl<'a> LayerStack<'a> {
    /// Forward. With `recompute` no layer keeps more than its input, and with `offload_activations`
    /// that waits in the host's memory.
    pub(super) fn forward(
        decoder: &'a Decoder,
        rows: &'a Rows,
        attend: &'a mut Packed,
        algorithm: &Algorithm,
    ) -> Self {
        let context = decoder.layer_context(rows);
        let mut x = tch::no_grad(|| decoder.embed(rows));
        let recomputed = if algorithm.recompute { decoder.depth() } else { 0 };
        let keep = |input: Tensor| match algorithm.offload_activations {
            true => input.to_device(Device::Cpu),
            false => input,
        };
        let mut inputs = Vec::with_capacity(recomputed + 1);
        for layer in 0..recomputed {
            let next = tch::no_grad(|| decoder.layer(layer, &x, &context, attend));
            inputs.push(keep(std::mem::replace(&mut x, next)));
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

    /// The head's input: the rows whose logits are needed, without gradient. `[M, width]`
    pub(super) fn hidden(&self) -> Tensor {
        self.hidden.detach()
    }

    /// Backward from the gradient of [`Self::hidden`]: adds to the gradients of all layers'
    /// weights, and returns the embedding's, `[vocabulary, width]` of f32. `between` is called
    /// before each layer that is computed again.
    ///
    /// # Errors
    /// Those of `between`.
    pub(super) fn backward<E>(
        self,
        gradient: &Tensor,
        mut between: impl FnMut() -> Result<(), E>,
    ) -> Result<Tensor, E> {
        let Self { decoder, rows, attend, context, mut inputs, recomputed, hidden } = self;
        let mut next = || inputs.pop().expect("each span has an input");
        back(&hidden, gradient);
        drop(hidden);
        let mut gradient = next().grad();
        for layer in (0..recomputed).rev() {
            between()?;
            let input = next().to_device(gradient.device()).set_requires_grad(true);
            back(&decoder.layer(layer, &input, &context, attend), &gradient);
            gradient = input.grad();
        }
        let vocabulary = decoder.config().vocab_size;
        let gradient = gradient.to_kind(Kind::Float);
        Ok(Tensor::embedding_dense_backward(&gradient, &rows.tokens, vocabulary, -1, false))
    }
}

/// Backward from `output` with this gradient: that of `Σ output · gradient` is the same.
fn back(output: &Tensor, gradient: &Tensor) {
    (output * gradient).sum(Kind::Float).backward();
}

/// The head's input `[M, width]`, for a forward without a backward.
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
