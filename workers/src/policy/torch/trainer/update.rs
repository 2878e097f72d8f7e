//! The passes of one step over its rollouts.

use std::collections::BTreeMap;

use millrace_schemas::submit::{Algorithm, Loss, OldPolicy};
use millrace_schemas::train_shard::Batch;
use tch::{Device, Kind, Tensor};

use super::adamw;
use super::deal::Piece;
use super::gradients::Gradients;
use super::pack::{Microbatch, dealt, microbatches, minibatches};
use super::samples::{Sample, Samples};
use super::state::State;
use super::tally::{Seen, Tally};
use crate::gang::Group;
use crate::math::aggregate::token_mean;
use crate::math::entropy::entropy;
use crate::math::policy_loss::{PolicyLoss, policy_gradient, ppo_clip};
use crate::policy::PolicyError;

/// Tokens of one forward on a CPU, whatever the run allows: more no longer fit its caches.
const CPU_MICROBATCH: usize = 4096;

/// A member's means to make updates of one state.
#[derive(Debug)]
pub(super) struct Member<'a> {
    group: Option<&'a Group>,
    gradients: Gradients,
    /// What of its parts is decayed.
    decayed: Vec<Piece>,
}

impl<'a> Member<'a> {
    /// Prepares the state's weights for backward.
    pub(super) fn new(state: &State, group: Option<&'a Group>) -> Self {
        let gradients = Gradients::new(&state.decoder, &state.deal, group);
        Self { group, gradients, decayed: state.deal.decayed(state.decoder.layout()) }
    }

    /// Buckets whose reduction began while backward ran, and all.
    pub(super) const fn overlapped(&self) -> (u64, u64) {
        self.gradients.overlapped()
    }

    /// Fails if this member was told to stop.
    fn check(&self) -> Result<(), PolicyError> {
        Ok(self.group.map_or(Ok(()), Group::check)?)
    }

    /// Replaces a tensor by its sum over the members.
    fn add_up(&self, tensor: &Tensor) -> Result<(), PolicyError> {
        Ok(self.group.map_or(Ok(()), |group| group.all_reduce(tensor))?)
    }
}

/// A step to be made: everything that it depends on, besides the state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) algorithm: &'a Algorithm,
    pub(super) batch: &'a Batch,
}

impl Step<'_> {
    /// Makes the step on `state`. Gives means over all its passes.
    ///
    /// # Errors
    /// The batch cannot be trained on, a loss or gradient is not finite, or a member was lost. `state` must be
    /// dropped then.
    pub(super) fn run(
        &self,
        state: &mut State,
        member: &mut Member<'_>,
    ) -> Result<BTreeMap<String, f64>, PolicyError> {
        let samples = Samples::of(self.batch, self.algorithm.advantage, state.decoder.config())?;
        let mut pass = Pass {
            algorithm: self.algorithm,
            temperature: samples.temperature,
            below: samples.below,
            tally: Tally::new(state.decoder.flat().device()),
        };
        let mut metrics = pass.run(state, member, samples.rows, self.batch)?;
        metrics.extend(samples.metrics);
        Ok(metrics)
    }
}

/// How a step goes.
#[derive(Debug)]
struct Pass<'a> {
    algorithm: &'a Algorithm,
    /// Divides the logits, as when the tokens were sampled.
    temperature: f64,
    /// Only tokens below this were drawn, and probabilities are over those alone.
    below: i64,
    tally: Tally,
}

impl Pass<'_> {
    /// All epochs and minibatches of a step, on `state`. Gives means over all of them.
    fn run(
        &mut self,
        state: &mut State,
        member: &mut Member<'_>,
        mut rows: Vec<Sample>,
        batch: &Batch,
    ) -> Result<BTreeMap<String, f64>, PolicyError> {
        if self.algorithm.old == OldPolicy::Proximal {
            self.recompute_old(state, member, &mut rows)?;
        }
        let (mut norms, before) = (0.0, state.moments.updates);
        let rate = adamw::rate(self.algorithm, batch.base.0);
        for epoch in 0..self.algorithm.epochs {
            let seed = batch.seed.wrapping_add(u64::from(epoch));
            for minibatch in minibatches(rows.len(), self.algorithm.minibatches as usize, seed) {
                norms += self.update(state, member, &rows, &minibatch, rate)?;
            }
        }
        member.add_up(self.tally.tensor())?;
        let mut metrics = self.tally.report();
        let updates = (state.moments.updates - before) as f64;
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
        &mut self,
        state: &mut State,
        member: &mut Member<'_>,
        rows: &[Sample],
        minibatch: &[usize],
        rate: f64,
    ) -> Result<f64, PolicyError> {
        let device = state.decoder.flat().device();
        // Every member counts the whole minibatch, so the denominator is the gang's without asking.
        let tokens: usize = minibatch.iter().map(|&index| rows[index].wanted.len()).sum();
        let mine = dealt(rows, minibatch, &state.deal);
        let forwards = microbatches(rows, &mine, self.most_tokens(device));
        member.gradients.clear();
        if forwards.is_empty() {
            member.gradients.last();
        }
        for (index, indices) in forwards.iter().enumerate() {
            member.check()?;
            if index + 1 == forwards.len() {
                member.gradients.last();
            }
            let samples: Vec<&Sample> = indices.iter().map(|&index| &rows[index]).collect();
            self.backward(state, &samples, tokens.max(1) as f64);
        }
        let mut gradient = member.gradients.add_up(&state.deal, member.group)?;
        let squares = gradient.to_kind(Kind::Double).square().sum(Kind::Double);
        member.add_up(&squares)?;
        let norm = f64::try_from(squares.sqrt()).unwrap_or(f64::NAN);
        if !norm.is_finite() {
            let update = state.moments.updates + 1;
            return Err(PolicyError::Impossible(format!("update={update} has a gradient of norm={norm}")));
        }
        let most = self.algorithm.max_grad_norm;
        if norm > most {
            let _ = gradient.g_mul_scalar_(most / norm);
        }
        let flat = state.decoder.flat().shallow_clone();
        let mut own = state.deal.own(&flat);
        adamw::update(&mut own, &mut state.moments, &gradient, &member.decayed, (rate, self.algorithm));
        member.gradients.gather(&state.deal, member.group, &own, &flat)?;
        Ok(norm)
    }

    /// Adds the gradient of one forward's share of the loss to the update's.
    fn backward(&mut self, state: &State, samples: &[&Sample], tokens: f64) {
        let device = state.decoder.flat().device();
        let mut packed = Microbatch::pack(samples, state.decoder.config(), device);
        let (log_p, entropy) = self.log_probabilities(state, &mut packed);
        let PolicyLoss { loss, clipped } = self.loss(&log_p, &packed);
        let total = &loss - &entropy * self.algorithm.entropy;
        token_mean(&total, &packed.mask, tokens).backward();
        self.tally.add(&Seen {
            loss: &total,
            entropy: &entropy,
            clipped: &clipped,
            log_p: &log_p,
            old: &packed.old,
            behaviour: &packed.behaviour,
            mask: &packed.mask,
        });
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

    /// Sets `old` to the log-probabilities of the version trained on. Each member computes its rows, and all get
    /// all: another minibatch deals them otherwise.
    fn recompute_old(
        &self,
        state: &State,
        member: &Member<'_>,
        rows: &mut [Sample],
    ) -> Result<(), PolicyError> {
        let _guard = tch::no_grad_guard();
        let device = state.decoder.flat().device();
        let all: Vec<usize> = (0..rows.len()).collect();
        rows.iter_mut().for_each(|row| row.old.fill(0.0));
        for indices in microbatches(rows, &dealt(rows, &all, &state.deal), self.most_tokens(device)) {
            member.check()?;
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
        let Some(_) = member.group else { return Ok(()) };
        // Every number is one member's, and 0 at the others.
        let whole: Vec<f32> = rows.iter().flat_map(|row| &row.old).copied().collect();
        let whole = Tensor::from_slice(&whole).to_device(device);
        member.add_up(&whole)?;
        let mut whole = Vec::<f32>::try_from(&whole).expect("one axis of f32").into_iter();
        for row in rows {
            row.old.fill_with(|| whole.next().expect("as many numbers as went in"));
        }
        Ok(())
    }

    fn most_tokens(&self, device: Device) -> usize {
        let most = self.algorithm.tokens_per_microbatch as usize;
        if device.is_cuda() { most } else { most.min(CPU_MICROBATCH) }
    }
}
