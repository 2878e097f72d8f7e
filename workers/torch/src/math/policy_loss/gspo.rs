//! One ratio for a whole span of tokens.

use tch::Tensor;

use crate::math::ratio::MAX_LOG_RATIO;

/// The log-ratio of each token's span: its value is the span's mean, its gradient that of the
/// token's own. Where advantage and share are the same over a span, the clipped surrogate of this
/// has the value and the gradient of one term `s = exp(mean log r)` for the span: the gradient of a
/// mean of N log-ratios is 1 / N each, and N tokens have that term. Zheng et al., "Group Sequence
/// Policy Optimization", 2025, equations 5 and 14, where the span is the rollout; where it is a
/// turn, the segment ratios of IPA: Wang et al., "Let It Flow" (ROME), 2025.
pub fn of_span(log_p: &Tensor, mean_log_ratio: &Tensor) -> Tensor {
    let mean = mean_log_ratio.detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
    mean + (log_p - log_p.detach())
}
