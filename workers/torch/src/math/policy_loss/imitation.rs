//! Imitation of rollouts that reached the goal, without a ratio.

use tch::Tensor;

/// `−coefficient · log_p` of the tokens whose `reached` is 1. Yue et al., "VAPO", 2025, equation
/// 13, which adds it for rollouts with a right answer, and Wang et al., "Let It Flow" (ROME), 2025,
/// which adds it for demonstrations.
pub fn imitation(log_p: &Tensor, reached: &Tensor, coefficient: f64) -> Tensor {
    log_p * reached * -coefficient
}
