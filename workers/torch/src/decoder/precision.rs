//! What a decoder's weights are kept in, as libtorch calls it.

use millrace_schemas::submit::Precision;
use tch::Kind;

use super::Config;

/// What the weights are kept in and the forward is computed in.
#[must_use]
pub(crate) const fn kind(config: &Config) -> Kind {
    match config.precision {
        Precision::F32 => Kind::Float,
        Precision::Bf16 => Kind::BFloat16,
    }
}
