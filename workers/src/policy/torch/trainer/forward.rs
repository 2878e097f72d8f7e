//! One forward of a step and its backward: the layers, the head, the loss of each token.

use millrace_schemas::submit::{Algorithm, Loss};
use tch::Tensor;

use super::gradients::Gradients;
use super::head::{Head, Slopes};
use super::pack::{Microbatch, Sampled};
use super::tally::{Seen, Tally};
use super::trunk::{Trunk, look};
use crate::math::aggregate::token_mean;
use crate::math::kl::kl;
use crate::math::policy_loss::{PolicyLoss, policy_gradient, ppo_clip};
use crate::policy::decoder::Decoder;

/// What all forwards of a step have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// Divides the logits, as when the tokens were sampled.
    pub(super) temperature: f64,
    /// Only tokens below this were drawn, and probabilities are over those alone.
    pub(super) below: i64,
}

impl Forward<'_> {
    /// Log-probability of each sampled token, without gradient. `[M]`
    pub(super) fn look(&self, decoder: &Decoder, packed: &mut Microbatch) -> Tensor {
        let hidden = look(decoder, &packed.rows, &mut packed.attend);
        self.head(decoder).look(&hidden, &packed.sampled.targets).0
    }

    /// Adds the gradient of one forward's share of the loss to the update's. `tokens` is the denominator: the
    /// tokens of all forwards of all members.
    pub(super) fn backward(
        &self,
        decoder: &Decoder,
        packed: &mut Microbatch,
        tokens: f64,
        gradients: &mut Gradients,
        tally: &mut Tally,
    ) {
        let Microbatch { rows, attend, sampled } = packed;
        let trunk = Trunk::forward(decoder, rows, attend, self.algorithm.recompute);
        let (hidden, targets) = (trunk.hidden(), &sampled.targets);
        let by_hidden =
            self.head(decoder).backward(&hidden, targets, gradients.head(), |from, log_p, entropy| {
                let part = sampled.narrow(from, log_p.size()[0]);
                self.slopes(&part, log_p, entropy, tokens, tally)
            });
        gradients.head_is_done();
        gradients.add_embedding(&trunk.backward(&by_hidden));
    }

    /// The slopes of this part's share of the loss, whose denominator is `tokens`.
    fn slopes(
        &self,
        part: &Sampled,
        log_p: &Tensor,
        entropy: &Tensor,
        tokens: f64,
        tally: &mut Tally,
    ) -> Slopes {
        let leaf = log_p.detach().set_requires_grad(true);
        let (PolicyLoss { loss, clipped }, distance) = tch::with_grad(|| {
            let policy = self.loss(&leaf, part);
            let distance = self.distance(&leaf, part);
            let coefficient = self.algorithm.kl.map_or(0.0, |kl| kl.coefficient);
            let differentiated = match &distance {
                Some(distance) => &policy.loss + distance * coefficient,
                None => policy.loss.shallow_clone(),
            };
            token_mean(&differentiated, &part.mask, tokens).backward();
            (PolicyLoss { loss: differentiated.detach(), ..policy }, distance)
        });
        let weight = self.algorithm.entropy;
        tally.add(&Seen {
            loss: &(loss - entropy * weight),
            entropy,
            clipped: &clipped,
            distance: distance.as_ref(),
            log_p,
            part,
        });
        let entropy = (weight != 0.0).then(|| &part.mask * (-weight / tokens));
        Slopes { log_p: leaf.grad(), entropy }
    }

    fn loss(&self, log_p: &Tensor, part: &Sampled) -> PolicyLoss {
        let Algorithm { clip_low, clip_high, .. } = *self.algorithm;
        match self.algorithm.loss {
            Loss::PpoClip => ppo_clip(log_p, &part.old, &part.advantage, clip_low, clip_high),
            Loss::PolicyGradient => policy_gradient(log_p, &part.advantage),
        }
    }

    /// From the reference model, where there is one.
    fn distance(&self, log_p: &Tensor, part: &Sampled) -> Option<Tensor> {
        let estimator = self.algorithm.kl.as_ref()?.estimator;
        Some(kl(estimator, log_p, part.reference.as_ref()?))
    }

    fn head(&self, decoder: &Decoder) -> Head {
        Head::new(decoder.head(), self.below, self.temperature)
    }
}
