//! Policy losses per token, to be minimised. All tensors are of one shape; the losses take gradients through
//! `log_p` alone.

use millrace_schemas::submit::{Algorithm, Loss};
use tch::{Kind, Tensor};

use super::ratio::log_ratio;
use cispo::cispo;
use dppo_tv::dppo_tv;
use gspo::of_stretch;
use kimi::kimi;
use policy_gradient::policy_gradient;
use ppo_clip::{Bounds, ppo_clip};
use topr::topr;

pub mod cispo;
pub mod dppo_tv;
pub mod gspo;
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

/// What a loss may depend on.
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
    /// For losses of whole rollouts or turns: `log p − log p_old`, its mean over the token's stretch, without gradient.
    pub mean_log_ratio: Option<&'a Tensor>,
}

/// The loss that the run asks for.
///
/// # Panics
/// A loss of whole rollouts or turns without their means.
#[must_use]
pub fn policy_loss(algorithm: &Algorithm, tokens: &Tokens<'_>) -> PolicyLoss {
    let Tokens { log_p, log_old, log_m, advantage, mean_log_ratio } = *tokens;
    let (p, log_old) = (&algorithm.parameters, log_old.detach());
    let log_r = || log_ratio(log_p, &log_old);
    let bounds = Bounds { low: algorithm.clip_low, high: algorithm.clip_high, dual: p.dual_clip };
    match algorithm.loss {
        Loss::PpoClip => ppo_clip(&log_r(), advantage, bounds),
        Loss::PolicyGradient => policy_gradient(log_p, advantage),
        Loss::Cispo => cispo(log_p, &log_r(), advantage, bounds),
        Loss::Topr => topr(log_p, &log_r(), advantage),
        Loss::Gspo | Loss::Segment => {
            let mean = mean_log_ratio.expect("the means of a stretch go with a loss that takes them");
            ppo_clip(&of_stretch(log_p, mean), advantage, bounds)
        }
        Loss::Kimi => kimi(log_p, &log_r(), advantage, p.tau),
        Loss::DppoTv => dppo_tv(log_p, log_m, advantage, (p.delta, p.pull)),
    }
}

/// No token is held.
fn none_clipped(like: &Tensor) -> Tensor {
    like.zeros_like().to_kind(Kind::Bool)
}
