//! Ratios of probabilities.

/// Log-ratios beyond this are cut: `e^20` is finite in every float kind, and no ratio that large is
/// meant.
pub const MAX_LOG_RATIO: f64 = 20.0;

/// `log_p − log_q`, cut to ±[`MAX_LOG_RATIO`].
pub fn log_ratio(log_p: &tch::Tensor, log_q: &tch::Tensor) -> tch::Tensor {
    (log_p - log_q).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
}
