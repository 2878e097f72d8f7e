//! What is between the products of a forward in bf16, in one pass each, with gradients: on CUDA, where each
//! of libtorch's plain operators reads and writes all rows. Numbers are computed in f32 and rounded once;
//! the plain operators round in between.

use millrace_kernels::training;
use tch::{Kind, Tensor};

use super::rope::Angles;
use super::{Config, kind};

/// Whether it computes decoders of this shape: in bf16, whose rows are taken four numbers at a time.
pub(super) fn serves(config: &Config) -> bool {
    kind(config) == Kind::BFloat16 && config.head_width() % 8 == 0 && config.intermediate_size % 4 == 0
}

/// Heads `x` `[rows, heads * head_width]` normalised by `norm` `[head_width]` with its epsilon, if there is
/// one, and rotated.
pub(super) fn turn(x: &Tensor, norm: Option<(&Tensor, f64)>, angles: &Angles) -> Tensor {
    let (cos, sin) = angles.as_tensors();
    training::turn_heads(x, norm, cos, sin)
}

/// RMSNorm of rows `x` `[rows, width]` by `weight` `[width]`.
pub(crate) fn normalise(x: &Tensor, weight: &Tensor, epsilon: f64) -> Tensor {
    x.internal_fused_rms_norm(weight.size(), Some(weight), epsilon).0
}
