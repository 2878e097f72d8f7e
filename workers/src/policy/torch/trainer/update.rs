//! The passes of one step over its rollouts.

use std::collections::BTreeMap;

use millrace_schemas::submit::{Algorithm, Loss, OldPolicy};
use millrace_schemas::train_shard::Batch;
use tch::{Device, Kind, Tensor};

use super::adamw;
use super::gang::Gang;
use super::pack::{Microbatch, microbatches, minibatches};
use super::samples::Sample;
use super::state::State;
use super::tally::{Seen, Tally};
use crate::math::aggregate::token_mean;
use crate::math::entropy::entropy;
use crate::math::policy_loss::{PolicyLoss, policy_gradient, ppo_clip};
use crate::policy::PolicyError;

/// Tokens of one forward on a CPU, whatever the run allows: more no longer fit its caches.
const CPU_MICROBATCH: usize = 4096;

/// How a step goes.
#[derive(Debug)]
pub(super) struct Pass<'a, G> {
    pub(super) algorithm: &'a Algorithm,
    /// Divides the logits, as when the tokens were sampled.
    pub(super) temperature: f64,
    /// Only tokens below this were drawn, and probabilities are over those alone.
    pub(super) below: i64,
    pub(super) gang: &'a G,
}

impl<G: Gang> Pass<'_, G> {
    /// All epochs and minibatches of a step, on `state`. Gives means over all of them.
    ///
    /// # Errors
    /// A loss or gradient is not finite, or the gang broke. `state` must be dropped then.
    pub(super) fn run(
        &self,
        state: &mut State,
        mut rows: Vec<Sample>,
        batch: &Batch,
    ) -> Result<BTreeMap<String, f64>, PolicyError> {
        if self.algorithm.old == OldPolicy::Proximal {
            self.recompute_old(state, &mut rows);
        }
        let mut tally = Tally::new(state.decoder.flat().device());
        let (mut norms, before) = (0.0, state.updates);
        let rate = adamw::rate(self.algorithm, batch.base.0);
        for epoch in 0..self.algorithm.epochs {
            let seed = batch.seed.wrapping_add(u64::from(epoch));
            for minibatch in minibatches(rows.len(), self.algorithm.minibatches as usize, seed) {
                norms += self.update(state, &rows, &minibatch, rate, &mut tally)?;
            }
        }
        self.gang.add_up(tally.tensor())?;
        let mut metrics = tally.report();
        let updates = (state.updates - before) as f64;
        metrics.insert("updates".to_owned(), updates);
        metrics.insert("grad_norm".to_owned(), norms / updates.max(1.0));
        metrics.insert("learning_rate".to_owned(), rate);
        let proximal = self.algorithm.old == OldPolicy::Proximal;
        metrics.insert("old_is_proximal".to_owned(), f64::from(u8::from(proximal)));
        match metrics.iter().find(|(_, value)| !value.is_finite()) {
            Some((name, value)) => Err(PolicyError::Impossible(format!("the step's {name} is {value}"))),
            None => Ok(metrics),
        }
    }

    /// One optimiser update. Gives the gradient's norm before it is cut.
    fn update(
        &self,
        state: &mut State,
        rows: &[Sample],
        minibatch: &[usize],
        rate: f64,
        tally: &mut Tally,
    ) -> Result<f64, PolicyError> {
        let device = state.decoder.flat().device();
        // Every member counts the whole minibatch, so the denominator is the gang's without asking.
        let tokens: usize = minibatch.iter().map(|&index| rows[index].wanted.len()).sum();
        let mine: Vec<usize> =
            minibatch.iter().copied().skip(self.gang.rank()).step_by(self.gang.world()).collect();
        let mut gradient = state.decoder.flat().zeros_like();
        for indices in microbatches(rows, &mine, self.most_tokens(device)) {
            let samples: Vec<&Sample> = indices.iter().map(|&index| &rows[index]).collect();
            gradient += self.gradient(state, &samples, tokens.max(1) as f64, tally);
        }
        self.gang.add_up(&mut gradient)?;
        let norm = f64::try_from(gradient.to_kind(Kind::Double).norm()).unwrap_or(f64::NAN);
        if !norm.is_finite() {
            let update = state.updates + 1;
            return Err(PolicyError::Impossible(format!("update={update} has a gradient of norm={norm}")));
        }
        let most = self.algorithm.max_grad_norm;
        if norm > most {
            let _ = gradient.g_mul_scalar_(most / norm);
        }
        adamw::update(state, &gradient, rate, self.algorithm);
        Ok(norm)
    }

    /// The gradient `[layout.len]` of one forward's share of the loss.
    fn gradient(&self, state: &State, samples: &[&Sample], tokens: f64, tally: &mut Tally) -> Tensor {
        let device = state.decoder.flat().device();
        let mut packed = Microbatch::pack(samples, state.decoder.config(), device);
        let (log_p, entropy) = self.log_probabilities(state, &mut packed);
        let PolicyLoss { loss, clipped } = self.loss(&log_p, &packed);
        let total = &loss - &entropy * self.algorithm.entropy;
        let leaves = state.decoder.leaves();
        let share = token_mean(&total, &packed.mask, tokens);
        let parts = Tensor::run_backward(&[&share], &leaves, false, false);
        tally.add(&Seen {
            loss: &total,
            entropy: &entropy,
            clipped: &clipped,
            log_p: &log_p,
            old: &packed.old,
            behaviour: &packed.behaviour,
            mask: &packed.mask,
        });
        let parts: Vec<Tensor> = parts.iter().map(|part| part.reshape([-1])).collect();
        Tensor::cat(&parts, 0)
    }

    /// Log-probability of each sampled token, and the entropy where it was drawn; `[B * R]` both.
    fn log_probabilities(&self, state: &State, packed: &mut Microbatch) -> (Tensor, Tensor) {
        let logits = state.decoder.forward(&packed.rows, &mut packed.attend);
        let logits = logits.narrow(-1, 0, self.below);
        let all = (logits / self.temperature).log_softmax(-1, Kind::Float);
        let log_p = all.gather(1, &packed.targets.unsqueeze(1), false).squeeze_dim(1);
        (log_p, entropy(&all))
    }

    fn loss(&self, log_p: &Tensor, packed: &Microbatch) -> PolicyLoss {
        let Algorithm { clip_low, clip_high, .. } = *self.algorithm;
        match self.algorithm.loss {
            Loss::PpoClip => ppo_clip(log_p, &packed.old, &packed.advantage, clip_low, clip_high),
            Loss::PolicyGradient => policy_gradient(log_p, &packed.advantage),
        }
    }

    /// Sets `old` to the log-probabilities of the version trained on.
    fn recompute_old(&self, state: &State, rows: &mut [Sample]) {
        let _guard = tch::no_grad_guard();
        let device = state.decoder.flat().device();
        let all: Vec<usize> = (0..rows.len()).collect();
        for indices in microbatches(rows, &all, self.most_tokens(device)) {
            let samples: Vec<&Sample> = indices.iter().map(|&index| &rows[index]).collect();
            let mut packed = Microbatch::pack(&samples, state.decoder.config(), device);
            let (log_p, _) = self.log_probabilities(state, &mut packed);
            let log_p = Vec::<f32>::try_from(&log_p).expect("one axis of f32");
            let sampled = log_p.len() / indices.len();
            for (index, log_p) in indices.iter().zip(log_p.chunks_exact(sampled)) {
                let old = &mut rows[*index].old;
                let count = old.len();
                old.copy_from_slice(&log_p[..count]);
            }
        }
    }

    fn most_tokens(&self, device: Device) -> usize {
        let most = self.algorithm.tokens_per_microbatch as usize;
        if device.is_cuda() { most } else { most.min(CPU_MICROBATCH) }
    }
}
