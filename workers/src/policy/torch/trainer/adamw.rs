//! AdamW over the flat buffer of weights.

use millrace_schemas::submit::Algorithm;
use tch::Tensor;

use super::state::State;

/// Added to the root of the second moment.
const EPSILON: f64 = 1e-8;

/// One update of `state` by `gradient` `[layout.len]` at `rate`: Loshchilov and Hutter, "Decoupled Weight Decay
/// Regularization", 2019, algorithm 2, with the arithmetic of `torch.optim.AdamW`. Only matrices are decayed.
pub(super) fn update(state: &mut State, gradient: &Tensor, rate: f64, algorithm: &Algorithm) {
    let (first, second) = (algorithm.adam_beta1, algorithm.adam_beta2);
    state.updates += 1;
    let count = state.updates as f64;
    let mut weights = state.decoder.flat().shallow_clone();
    if algorithm.weight_decay > 0.0 {
        for part in state.decoder.layout().parts.iter().filter(|part| part.is_matrix()) {
            let _ =
                weights.narrow(0, part.offset, part.len()).g_mul_scalar_(1.0 - rate * algorithm.weight_decay);
        }
    }
    let _ = state.first_moment.lerp_(gradient, 1.0 - first);
    let _ = state.second_moment.g_mul_scalar_(second);
    state.second_moment += gradient.square() * (1.0 - second);
    let root = state.second_moment.sqrt() / (1.0 - second.powf(count)).sqrt() + EPSILON;
    weights -= &state.first_moment / root * (rate / (1.0 - first.powf(count)));
}

/// The learning rate of the step on version `base`: it rises to `learning_rate` over `warmup_steps` steps.
pub(super) fn rate(algorithm: &Algorithm, base: u64) -> f64 {
    let warmup = algorithm.warmup_steps.max(1) as f64;
    algorithm.learning_rate * ((base + 1) as f64 / warmup).min(1.0)
}
