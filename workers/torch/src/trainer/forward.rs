//! One forward of a step and its backward: the layers, the head, the loss of each token.

use millrace_schemas::submit::{Algorithm, KlPlace, OldPolicy, RatioLevel};
use tch::Tensor;

use super::critic;
use super::gradients::Gradients;
use super::head::{Head, LossGradients};
use super::layer_stack::{LayerStack, Weights, look, one_token};
use super::pack::{LossInputs, Microbatch, TokenSpans};
use super::step_metrics::{StepMetrics, TokenLosses};
use crate::decoder::Decoder;
use crate::gang::GangError;
use crate::math::aggregate::add_up;
use crate::math::kl::kl;
use crate::math::policy_loss::imitation::imitation;
use crate::math::policy_loss::{Span, Tokens, policy_loss};
use crate::math::spans::Spans;

/// What all forwards of a step have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// Coefficient of the KL penalty.
    pub(super) coefficient: f64,
    /// The sampling temperature, which divides the logits.
    pub(super) temperature: f64,
    /// Only tokens below this were drawn, so probabilities are over those alone.
    pub(super) below: i64,
}

/// What a model computes for each sampled token before any update.
#[derive(Debug, Default)]
pub(super) struct Look<V> {
    pub(super) log_p: V,
    /// The critic's; `None` without one.
    pub(super) values: Option<V>,
}

impl<V> Look<V> {
    /// Each of the two that there is.
    pub(super) fn each(&mut self) -> impl Iterator<Item = &mut V> {
        std::iter::once(&mut self.log_p).chain(&mut self.values)
    }
}

impl Forward<'_> {
    /// Log-probability and value of each sampled token, `[M]`, without gradient.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn look(
        &self,
        weights: Weights<'_>,
        packed: &mut Microbatch,
    ) -> Result<Look<Tensor>, GangError> {
        let hidden = look(weights, &packed.rows, &mut packed.attend)?;
        let log_p = self.head(weights.decoder).look(&hidden, &packed.targets).0;
        let critic = weights.decoder.critic();
        Ok(Look { log_p, values: critic.map(|weight| critic::values(weight, &hidden)) })
    }

    /// Takes part in the gathering of weights for a look of other members.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn look_idly(weights: Weights<'_>) -> Result<(), GangError> {
        let (rows, mut attend) = one_token(weights.decoder);
        look(weights, &rows, &mut attend).map(drop)
    }

    /// The same for a backward: makes the calls that others make, and adds a gradient of 0.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn backward_idly(
        &self,
        weights: Weights<'_>,
        gradients: &mut Gradients<'_>,
    ) -> Result<(), GangError> {
        let (rows, mut attend) = one_token(weights.decoder);
        let layer_stack = LayerStack::forward(weights, &rows, &mut attend, self.algorithm)?;
        let nothing = layer_stack.hidden().zeros_like();
        gradients.head_is_done();
        if weights.decoder.critic().is_some() {
            gradients.critic_is_done();
        }
        let embedding = layer_stack.backward(&nothing, || gradients.settle())?;
        gradients.add_embedding(&embedding);
        Ok(())
    }

    /// Adds the gradient of one forward's share of the loss to the update's.
    ///
    /// # Errors
    /// A member was lost.
    pub(super) fn backward(
        &self,
        weights: Weights<'_>,
        packed: &mut Microbatch,
        mut inputs: LossInputs,
        gradients: &mut Gradients<'_>,
        step_metrics: &mut StepMetrics,
    ) -> Result<(), GangError> {
        let spans = self.spans(packed);
        let Microbatch { rows, attend, targets, rollouts, .. } = packed;
        let decoder = weights.decoder;
        let layer_stack = LayerStack::forward(weights, rows, attend, self.algorithm)?;
        let (hidden, head) = (layer_stack.hidden(), self.head(decoder));
        // A token's weight depends on its whole span, but the head computes in chunks.
        inputs.span = spans.map(|spans| {
            let log_p = head.look(&hidden, targets).0;
            let means = spans.means(&(&log_p - self.old(&inputs, &log_p)));
            let [mean_log_ratio, length] = [means, spans.lengths()].map(|of| of.to_kind(log_p.kind()));
            TokenSpans { mean_log_ratio, length }
        });
        let mut seen = Vec::new();
        let learnt = decoder.critic().map(|weight| {
            critic::backward(weight, &hidden, &inputs, &self.algorithm.critic, gradients.critic())
        });
        let mut by_hidden = head.backward(&hidden, targets, gradients.head(), |from, log_p, entropy| {
            let part = inputs.narrow(from, log_p.size()[0]);
            let (loss_gradients, part) = self.loss_gradients(&part, log_p, entropy);
            seen.push(part);
            loss_gradients
        });
        let value_loss = learnt.as_ref().map(|learnt| &learnt.loss);
        step_metrics.add(&TokenLosses::cat(&seen), value_loss, &inputs, rollouts);
        gradients.head_is_done();
        if let Some(learnt) = learnt {
            by_hidden += learnt.by_hidden;
            gradients.critic_is_done();
        }
        let embedding = layer_stack.backward(&by_hidden, || gradients.settle())?;
        gradients.add_embedding(&embedding);
        Ok(())
    }

    /// The loss gradients of this part's share of the loss, and its token losses.
    fn loss_gradients(
        &self,
        part: &LossInputs,
        log_p: &Tensor,
        entropy: &Tensor,
    ) -> (LossGradients, TokenLosses) {
        let leaf = log_p.detach().set_requires_grad(true);
        let old = self.old(part, log_p);
        let tokens = Tokens {
            log_p: &leaf,
            log_old: &old,
            log_m: &part.tokens.behaviour,
            advantage: &part.tokens.advantage,
            span: part
                .span
                .as_ref()
                .map(|of| Span { mean_log_ratio: &of.mean_log_ratio, length: &of.length }),
        };
        let (loss, clipped, distance) = tch::with_grad(|| {
            let policy = policy_loss(self.algorithm, &tokens);
            // Never in place: backward needs the inputs of the loss.
            let weighted = match &part.tokens.weight {
                Some(weight) => policy.loss * weight,
                None => policy.loss,
            };
            let weighted = match &part.tokens.reached {
                Some(reached) => weighted + imitation(&leaf, reached, self.algorithm.imitation),
                None => weighted,
            };
            let distance = self.distance(&leaf, part);
            let loss = match distance.as_ref().filter(|_| self.is_in_loss()) {
                Some(distance) => weighted + distance * self.coefficient,
                None => weighted,
            };
            add_up(&loss, &part.tokens.mask, &part.share).backward();
            (loss.detach(), policy.clipped, distance.map(|distance| distance.detach()))
        });
        let weight = self.algorithm.entropy;
        let seen = TokenLosses {
            loss: loss - entropy * weight,
            entropy: entropy.shallow_clone(),
            clipped,
            distance,
            log_p: log_p.shallow_clone(),
            old,
        };
        let entropy = (weight != 0.0).then(|| &part.tokens.mask * &part.share * -weight);
        (LossGradients { log_p: leaf.grad(), entropy }, seen)
    }

    /// The log-probability that each token's ratio is taken against.
    fn old(&self, part: &LossInputs, log_p: &Tensor) -> Tensor {
        match self.algorithm.old {
            OldPolicy::Behaviour | OldPolicy::Proximal => part.tokens.old.shallow_clone(),
            OldPolicy::Current => log_p.detach(),
        }
    }

    /// The spans that share a ratio; `None` where each token has its own.
    fn spans(&self, packed: &Microbatch) -> Option<Spans> {
        let lengths = match self.algorithm.ratio_level() {
            RatioLevel::Token => return None,
            RatioLevel::Turn => &packed.turns,
            RatioLevel::Rollout => &packed.rollouts,
        };
        Some(Spans::new(lengths, packed.targets.device()))
    }

    /// Estimated KL divergence from the reference model; `None` without one.
    fn distance(&self, log_p: &Tensor, part: &LossInputs) -> Option<Tensor> {
        let estimator = self.algorithm.kl.as_ref()?.estimator;
        Some(kl(estimator, log_p, part.tokens.reference.as_ref()?))
    }

    /// Whether the distance is part of the loss.
    fn is_in_loss(&self) -> bool {
        self.algorithm.kl.is_some_and(|kl| kl.place == KlPlace::Loss)
    }

    fn head(&self, decoder: &Decoder) -> Head {
        Head::new(decoder.head(), self.below, self.temperature)
    }
}
