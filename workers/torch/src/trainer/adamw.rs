//! AdamW over the parts of the flat buffer that a member owns.

use millrace_schemas::submit::Algorithm;
use tch::Tensor;

use super::state::Optimiser;
use super::zero_partition::OwnedRange;

/// Added to the root of the second moment.
const EPSILON: f64 = 1e-8;
/// Elements of one update call on a CPU: intermediate results stay in its caches and take no memory
/// of the size of the model.
const CPU_SPAN: i64 = 1 << 18;
/// On a GPU, where a call costs more.
const GPU_SPAN: i64 = 1 << 25;

/// One update of `weights` `[own]` by `gradient` `[own]` at `rate`: Loshchilov and Hutter,
/// "Decoupled Weight Decay Regularization", 2019, algorithm 2, with the arithmetic of
/// `torch.optim.AdamW`. Only `decayed` is decayed.
pub(super) fn update(
    weights: &Tensor,
    optimiser: &mut Optimiser,
    gradient: &Tensor,
    decayed: &[OwnedRange],
    (rate, algorithm): (f64, &Algorithm),
) {
    optimiser.updates += 1;
    if algorithm.weight_decay > 0.0 {
        for range in decayed {
            let _ =
                weights.narrow(0, range.own_at, range.len).g_mul_scalar_(1.0 - rate * algorithm.weight_decay);
        }
    }
    let (first, second) = (algorithm.adam_beta1, algorithm.adam_beta2);
    let count = optimiser.updates as f64;
    let size = rate / (1.0 - first.powf(count));
    let correction = (1.0 - second.powf(count)).sqrt();
    for (from, len) in spans(gradient) {
        let span = |of: &Tensor| of.narrow(0, from, len);
        let [mut weights, gradient, mut m, mut v] =
            [span(weights), span(gradient), span(&optimiser.first), span(&optimiser.second)];
        let _ = m.lerp_(&gradient, 1.0 - first);
        let _ = v.g_mul_scalar_(second);
        v += gradient.square() * (1.0 - second);
        weights -= &m / (v.sqrt() / correction + EPSILON) * size;
    }
}

/// The sum of squares of `gradient` `[own]`, in f64.
pub(super) fn squares(gradient: &Tensor) -> Tensor {
    let kind = tch::Kind::Double;
    let sum = |(from, len)| gradient.narrow(0, from, len).to_kind(kind).square().sum(kind);
    let sums: Vec<Tensor> = spans(gradient).map(sum).collect();
    Tensor::stack(&sums, 0).sum(kind)
}

/// Start and length of each span of a flat tensor.
fn spans(flat: &Tensor) -> impl Iterator<Item = (i64, i64)> + use<> {
    let (len, most) = (flat.size()[0], if flat.device().is_cuda() { GPU_SPAN } else { CPU_SPAN });
    (0..len).step_by(most as usize).map(move |from| (from, most.min(len - from)))
}
