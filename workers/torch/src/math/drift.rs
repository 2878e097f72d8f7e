//! How far a policy is from the one that sampled: sums over tokens, so that parts can be added up.

use std::collections::BTreeMap;

use tch::{Kind, Tensor};

use super::ratio::{MAX_LOG_RATIO, log_ratio};
use super::spans::Spans;

/// Sums that [`sums`] gives.
pub const SUMS: i64 = 6;

/// `[SUMS]` of f64: `Σ M·x` with x = |Δ|, −Δ, e^Δ − 1 − Δ, e^|Δ|, e^Δ and e^2Δ, where Δ = `log_x −
/// log_m` and the tokens were sampled from m.
pub fn sums(log_x: &Tensor, log_m: &Tensor, mask: &Tensor) -> Tensor {
    let delta = log_ratio(log_x, log_m).detach().to_kind(Kind::Double);
    let ratio = delta.exp();
    let rows = [
        delta.abs(),
        -&delta,
        &ratio - 1.0 - &delta,
        delta.abs().exp(),
        ratio.shallow_clone(),
        ratio.square(),
    ];
    let rows = Tensor::stack(&rows, 0).view([SUMS, -1]);
    rows.matmul(&mask.to_kind(Kind::Double).view([-1]))
}

/// `Σ (Π e^Δ)²` over rollouts, as one of f64: what `χ² = mean − 1` of whole rollouts is made of.
pub fn squared_products(log_x: &Tensor, log_m: &Tensor, rollouts: &Spans) -> Tensor {
    let products = rollouts.sums(&(log_x - log_m).detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO);
    (products * 2.0).exp().sum(Kind::Double)
}

/// The metrics that follow from the sums over `tokens` tokens, each name after `prefix`:
/// `logprob_abs` mean |Δ|; `kl_k1` and `kl_k3` estimates of KL(m ‖ x) (Schulman, "Approximating KL
/// Divergence", 2020); `logprob_exp_abs` mean e^|Δ|, the alarm when it rises beyond 1.01 to 1.02;
/// `chi2` mean e^2Δ − 1; `ess` the effective sample size (Σ e^Δ)² / (n Σ e^2Δ), from 0 to 1 (Kong,
/// 1992).
pub fn report(prefix: &str, sums: &[f64], tokens: f64, into: &mut BTreeMap<String, f64>) {
    let mut put = |name: &str, value: f64| {
        into.insert(format!("{prefix}{name}"), value);
    };
    let tokens = tokens.max(1.0);
    put("logprob_abs", sums[0] / tokens);
    put("kl_k1", sums[1] / tokens);
    put("kl_k3", sums[2] / tokens);
    put("logprob_exp_abs", sums[3] / tokens);
    put("chi2", sums[5] / tokens - 1.0);
    put("ess", sums[4] * sums[4] / (tokens * sums[5]).max(f64::MIN_POSITIVE));
}
