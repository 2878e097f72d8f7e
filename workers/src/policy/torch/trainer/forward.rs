//! One forward of a step and its backward: the layers, the head, the loss of each token.

use millrace_schemas::submit::{Algorithm, KlPlace, OldPolicy, RatioLevel};
use tch::Tensor;

use super::critic;
use super::gradients::Gradients;
use super::head::{Head, Slopes};
use super::pack::{Microbatch, Sampled, StretchOf};
use super::tally::{Seen, Tally};
use super::trunk::{Trunk, look};
use crate::math::aggregate::add_up;
use crate::math::kl::kl;
use crate::math::policy_loss::imitation::imitation;
use crate::math::policy_loss::{Stretch, Tokens, policy_loss};
use crate::math::stretch::Stretches;
use crate::policy::decoder::Decoder;

/// What all forwards of a step have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forward<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// Of the distance from the reference.
    pub(super) coefficient: f64,
    /// Divides the logits, as when the tokens were sampled.
    pub(super) temperature: f64,
    /// Only tokens below this were drawn, and probabilities are over those alone.
    pub(super) below: i64,
}

impl Forward<'_> {
    /// Log-probability of each sampled token, `[M]`, and where the decoder has a critic what that expects, without
    /// gradient.
    pub(super) fn look(&self, decoder: &Decoder, packed: &mut Microbatch) -> Vec<Tensor> {
        let hidden = look(decoder, &packed.rows, &mut packed.attend);
        let log_p = self.head(decoder).look(&hidden, &packed.sampled.targets).0;
        let values = decoder.critic().map(|weight| critic::values(weight, &hidden));
        [log_p].into_iter().chain(values).collect()
    }

    /// Adds the gradient of one forward's share of the loss to the update's.
    pub(super) fn backward(
        &self,
        decoder: &Decoder,
        packed: &mut Microbatch,
        gradients: &mut Gradients,
        tally: &mut Tally,
    ) {
        let stretches = self.stretches(packed);
        let Microbatch { rows, attend, sampled, rollouts, .. } = packed;
        let trunk = Trunk::forward(decoder, rows, attend, self.algorithm.recompute);
        let (hidden, head) = (trunk.hidden(), self.head(decoder));
        // What a token counts depends on its whole stretch, which the head comes to in parts.
        sampled.stretch = stretches.map(|stretches| {
            let log_p = head.look(&hidden, &sampled.targets).0;
            let means = stretches.means(&(&log_p - self.old(sampled, &log_p)));
            let [mean_log_ratio, length] = [means, stretches.lengths()].map(|of| of.to_kind(log_p.kind()));
            StretchOf { mean_log_ratio, length }
        });
        let sampled = &*sampled;
        let mut seen = Vec::new();
        let learnt = decoder.critic().map(|weight| {
            critic::backward(weight, &hidden, sampled, &self.algorithm.critic, gradients.critic())
        });
        let mut by_hidden =
            head.backward(&hidden, &sampled.targets, gradients.head(), |from, log_p, entropy| {
                let part = sampled.narrow(from, log_p.size()[0]);
                let (slopes, part) = self.slopes(&part, log_p, entropy);
                seen.push(part);
                slopes
            });
        let value_loss = learnt.as_ref().map(|learnt| &learnt.loss);
        tally.add(&Seen::cat(&seen), value_loss, sampled, rollouts);
        gradients.head_is_done();
        if let Some(learnt) = learnt {
            by_hidden += learnt.by_hidden;
            gradients.critic_is_done();
        }
        gradients.add_embedding(&trunk.backward(&by_hidden));
    }

    /// The slopes of this part's share of the loss, and what there is to be seen of it.
    fn slopes(&self, part: &Sampled, log_p: &Tensor, entropy: &Tensor) -> (Slopes, Seen) {
        let leaf = log_p.detach().set_requires_grad(true);
        let old = self.old(part, log_p);
        let tokens = Tokens {
            log_p: &leaf,
            log_old: &old,
            log_m: &part.behaviour,
            advantage: &part.advantage,
            stretch: part
                .stretch
                .as_ref()
                .map(|of| Stretch { mean_log_ratio: &of.mean_log_ratio, length: &of.length }),
        };
        let (loss, clipped, distance) = tch::with_grad(|| {
            let policy = policy_loss(self.algorithm, &tokens);
            // Never in place: what a loss was made of is needed on the way back.
            let weighted = match &part.weight {
                Some(weight) => policy.loss * weight,
                None => policy.loss,
            };
            let weighted = match &part.reached {
                Some(reached) => weighted + imitation(&leaf, reached, self.algorithm.imitation),
                None => weighted,
            };
            let distance = self.distance(&leaf, part);
            let loss = match distance.as_ref().filter(|_| self.is_in_loss()) {
                Some(distance) => weighted + distance * self.coefficient,
                None => weighted,
            };
            add_up(&loss, &part.mask, &part.share).backward();
            (loss.detach(), policy.clipped, distance.map(|distance| distance.detach()))
        });
        let weight = self.algorithm.entropy;
        let seen = Seen {
            loss: loss - entropy * weight,
            entropy: entropy.shallow_clone(),
            clipped,
            distance,
            log_p: log_p.shallow_clone(),
            old,
        };
        let entropy = (weight != 0.0).then(|| &part.mask * &part.share * -weight);
        (Slopes { log_p: leaf.grad(), entropy }, seen)
    }

    /// The log-probability that each token's ratio is taken against.
    fn old(&self, part: &Sampled, log_p: &Tensor) -> Tensor {
        match self.algorithm.old {
            OldPolicy::Behaviour | OldPolicy::Proximal => part.old.shallow_clone(),
            OldPolicy::Current => log_p.detach(),
        }
    }

    /// The stretches that have one ratio each, where it is not that of the token.
    fn stretches(&self, packed: &Microbatch) -> Option<Stretches> {
        let lengths = match self.algorithm.ratio_level() {
            RatioLevel::Token => return None,
            RatioLevel::Turn => &packed.turns,
            RatioLevel::Rollout => &packed.rollouts,
        };
        Some(Stretches::new(lengths, packed.sampled.targets.device()))
    }

    /// From the reference model, where there is one.
    fn distance(&self, log_p: &Tensor, part: &Sampled) -> Option<Tensor> {
        let estimator = self.algorithm.kl.as_ref()?.estimator;
        Some(kl(estimator, log_p, part.reference.as_ref()?))
    }

    /// Whether the distance is part of the loss.
    fn is_in_loss(&self) -> bool {
        self.algorithm.kl.is_some_and(|kl| kl.place == KlPlace::Loss)
    }

    fn head(&self, decoder: &Decoder) -> Head {
        Head::new(decoder.head(), self.below, self.temperature)
    }
}
