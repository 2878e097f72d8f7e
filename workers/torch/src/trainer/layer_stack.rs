//! The layers of one forward, and backward through them. With recomputation only the input of each
//! layer is kept, and backward computes the layer again: Chen et al., "Training Deep Nets with
//! Sublinear Memory Cost", 2016. Where the weights are sharded, each layer's are gathered for it, on
//! the way up and on the way down.

use millrace_schemas::submit::Algorithm;
use tch::{Device, Kind, Tensor};

use super::gathering::Gathering;
use crate::decoder::{Decoder, Extent, LayerContext, Packed, Rows};
use crate::gang::GangError;

/// A decoder in a forward, and where its weights come from if it is hollow.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weights<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) gathering: Option<&'a Gathering<'a>>,
}

impl Weights<'_> {
    /// Has the weights of a layer there, and those of the next one to come on their way. The layer
    /// after the last stands for the last norm.
    fn hold(&self, layer: usize, next: Option<usize>) -> Result<(), GangError> {
        self.gathering.map_or(Ok(()), |gathering| gathering.hold(self.decoder, layer, next))
    }

    /// Nothing of a hollow decoder is needed for a while.
    pub(super) fn let_go(&self) {
        if let Some(gathering) = self.gathering {
            gathering.let_all_go(self.decoder);
        }
    }
}

/// The layer stack after its forward, ready for its backward.
#[derive(Debug)]
pub(super) struct LayerStack<'a> {
    weights: Weights<'a>,
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
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn forward(
        weights: Weights<'a>,
        rows: &'a Rows,
        attend: &'a mut Packed,
        algorithm: &Algorithm,
    ) -> Result<Self, GangError> {
        let decoder = weights.decoder;
        weights.hold(0, Some(1))?;
        let context = decoder.layer_context(rows);
        let mut x = tch::no_grad(|| decoder.embed(rows));
        let recomputed = if algorithm.recompute { decoder.depth() } else { 0 };
        let keep = |input: Tensor| match algorithm.offload_activations {
            true => input.to_device(Device::Cpu),
            false => input,
        };
        let mut inputs = Vec::with_capacity(recomputed + 1);
        for layer in 0..recomputed {
            weights.hold(layer, Some(layer + 1))?;
            let next = tch::no_grad(|| decoder.layer(layer, &x, &context, attend));
            inputs.push(keep(std::mem::replace(&mut x, next)));
        }
        let first = x.set_requires_grad(true);
        let mut x = first.shallow_clone();
        for layer in recomputed..decoder.depth() {
            x = decoder.layer(layer, &x, &context, attend);
        }
        // Backward begins with the last layer.
        weights.hold(decoder.depth(), recomputed.checked_sub(1))?;
        let hidden = decoder.finish(&x);
        inputs.push(first);
        Ok(Self { weights, rows, attend, context, inputs, recomputed, hidden })
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
    /// Those of `between`, or a member was lost.
    pub(super) fn backward(
        self,
        gradient: &Tensor,
        mut between: impl FnMut() -> Result<(), GangError>,
    ) -> Result<Tensor, GangError> {
        let Self { weights, rows, attend, context, mut inputs, recomputed, hidden } = self;
        let decoder = weights.decoder;
        let mut next = || inputs.pop().expect("each span has an input");
        back(&hidden, gradient);
        drop(hidden);
        let mut gradient = next().grad();
        for layer in (0..recomputed).rev() {
            between()?;
            weights.hold(layer, layer.checked_sub(1))?;
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
///
/// # Errors
/// A member was lost.
pub(super) fn look(weights: Weights<'_>, rows: &Rows, attend: &mut Packed) -> Result<Tensor, GangError> {
    let decoder = weights.decoder;
    tch::no_grad(|| {
        weights.hold(0, Some(1))?;
        let context = decoder.layer_context(rows);
        let mut x = decoder.embed(rows);
        for layer in 0..decoder.depth() {
            weights.hold(layer, Some(layer + 1))?;
            x = decoder.layer(layer, &x, &context, attend);
        }
        weights.hold(decoder.depth(), None)?;
        Ok(decoder.finish(&x))
    })
}

/// One token in one sequence: what a member computes that has nothing of its own, beside others that
/// gather weights for theirs.
pub(super) fn one_token(decoder: &Decoder) -> (Rows, Packed) {
    let device = decoder.device();
    let zero = || Tensor::zeros([1], (Kind::Int64, device));
    let rows = Rows { tokens: zero(), positions: zero(), logit_rows: zero() };
    (rows, Packed::new(decoder.config(), &[Extent { tokens: 1, logit_positions: &[0] }], device))
}
