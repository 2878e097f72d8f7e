//! AdamW over the parts of the flat buffer that a member owns.

use millrace_schemas::submit::Algorithm;
use tch::Tensor;

use super::deal::Piece;
use super::state::Moments;

/// Added to the root of the second moment.
const EPSILON: f64 = 1e-8;

/// One update of `weights` `[own]` by `gradient` `[own]` at `rate`: Loshchilov and Hutter, "Decoupled Weight Decay
/// Regularization", 2019, algorithm 2, with the arithmetic of `torch.optim.AdamW`. Only `decayed` is decayed.
pub(super) fn update(
    weights: &mut Tensor,
    moments: &mut Moments,
    gradient: &Tensor,
    decayed: &[Piece],
    (rate, algorithm): (f64, &Algorithm),
) {
    let (first, second) = (algorithm.adam_beta1, algorithm.adam_beta2);
    moments.updates += 1;
    let count = moments.updates as f64;
    if algorithm.weight_decay > 0.0 {
        for piece in decayed {
            let _ =
                weights.narrow(0, piece.own_at, piece.len).g_mul_scalar_(1.0 - rate * algorithm.weight_decay);
        }
    }
    let _ = moments.first.lerp_(gradient, 1.0 - first);
    let _ = moments.second.g_mul_scalar_(second);
    moments.second += gradient.square() * (1.0 - second);
    let root = moments.second.sqrt() / (1.0 - second.powf(count)).sqrt() + EPSILON;
    *weights -= &moments.first / root * (rate / (1.0 - first.powf(count)));
}

/// The learning rate of the step on version `base`: it rises to `learning_rate` over `warmup_steps` steps.
pub(super) fn rate(algorithm: &Algorithm, base: u64) -> f64 {
    let warmup = algorithm.warmup_steps.max(1) as f64;
    algorithm.learning_rate * ((base + 1) as f64 / warmup).min(1.0)
}
