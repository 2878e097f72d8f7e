//! Policy losses per token, to be minimised. All tensors are of one shape; the losses take
//! gradients through `log_p` alone.

use millrace_schemas::submit::{Algorithm, Loss, RatioLevel};
use tch::{Kind, Tensor};

use super::ratio::log_ratio;
use cispo::cispo;
use dppo_tv::dppo_tv;
use gspo::of_span;
use kimi::{kimi, square_of_sum};
use policy_gradient::policy_gradient;
use ppo_clip::{Bounds, ppo_clip};
use topr::topr;

pub mod cispo;
pub mod dppo_tv;
pub mod gspo;
pub mod imitation;
pub mod kimi;
pub mod policy_gradient;
pub mod ppo_clip;
pub mod topr;

/// A loss per token, and which tokens its bound holds.
#[derive(Debug)]
pub struct PolicyLoss {
    /// The loss.
    pub loss: Tensor,
    /// Whether a bound is in force: the token has no gradient, or its weight is cut. Bool.
    pub clipped: Tensor,
}

/// The inputs of a loss.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// Log-probabilities under the policy in training, with gradient.
    pub log_p: &'a Tensor,
    /// Under the old policy.
    pub log_old: &'a Tensor,
    /// Under the policy that sampled.
    pub log_m: &'a Tensor,
    /// Advantages.
    pub advantage: &'a Tensor,
    /// The tokens that share its ratio, where it is not the token's own.
    pub span: Option<Span<'a>>,
}

/// Of each token, the span of tokens that share one ratio.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// `log p − log p_old`, its mean over the span, without gradient.
    pub mean_log_ratio: &'a Tensor,
    /// Tokens of the span.
    pub length: &'a Tensor,
}

/// The loss that the run asks for.
///
/// # Panics
/// A ratio of whole rollouts or turns without their spans.
#[must_use]
pub fn policy_loss(algorithm: &Algorithm, tokens: &Tokens<'_>) -> PolicyLoss {
    let Tokens { log_p, log_old, log_m, advantage, span } = *tokens;
    assert!(
        span.is_some() || algorithm.ratio_level() == RatioLevel::Token,
        "the means of a span go with a ratio that takes them"
    );
    let (p, log_old) = (&algorithm.parameters, log_old.detach());
    let log_r = || match span {
        Some(span) => of_span(log_p, span.mean_log_ratio),
        None => log_ratio(log_p, &log_old),
    };
    let bounds = Bounds { low: algorithm.clip_low, high: algorithm.clip_high, dual: p.dual_clip };
    match algorithm.loss {
        Loss::PpoClip | Loss::Gspo | Loss::Segment => ppo_clip(&log_r(), advantage, bounds),
        Loss::PolicyGradient => policy_gradient(log_p, advantage),
        Loss::Cispo => cispo(log_p, &log_r(), advantage, bounds),
        Loss::Topr => topr(log_p, &log_r(), advantage),
        Loss::Kimi => {
            let squared = match span {
                Some(span) => square_of_sum(log_p, span),
                None => log_r().square(),
            };
            kimi(log_p, &squared, advantage, p.tau)
        }
        Loss::DppoTv => dppo_tv(log_p, log_m, advantage, (p.delta, p.pull)),
    }
}

/// No token is clipped.
fn none_clipped(like: &Tensor) -> Tensor {
    like.zeros_like().to_kind(Kind::Bool)
}
