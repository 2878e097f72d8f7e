//! The passes of one step over its rollouts.

use std::collections::BTreeMap;

use millrace_policy::share::minibatches_of;
use millrace_policy::{PolicyError, Share};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, OldPolicy};
use millrace_schemas::train_shard::Batch;
use tch::{Device, Kind, Tensor};

use super::adamw;
use super::exchange::exchange;
use super::forward::{Forward, Look};
use super::gathering::Gathering;
use super::gradients::Gradients;
use super::layer_stack::Weights;
use super::pack::{LossInputs, Microbatch, microbatches};
use super::per_token::{Looked, Row, Sampled, ScoredTokens};
use super::samples::Samples;
use super::schedule::rate;
use super::score::{coefficient, score};
use super::state::TrainerState;
use super::step_metrics::{Beside, StepMetrics};
use super::zero_partition::OwnedRange;
use crate::decoder::{Decoder, Part};
use crate::gang::Group;
use crate::math::aggregate::Whole;

/// Tokens of one forward on a CPU, even if the run allows more: more do not fit its caches.
const CPU_MICROBATCH: usize = 4096;

/// What a member needs for the updates of one state.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) group: Option<&'a Group>,
    gradients: Gradients<'a>,
    /// Where the weights are sharded.
    gathering: Option<Gathering<'a>>,
    /// The ranges of its parts with weight decay.
    decayed: Vec<OwnedRange>,
}

impl<'a> Member<'a> {
    /// Prepares the state's weights for backward.
    pub(super) fn new(state: &TrainerState, algorithm: &Algorithm, group: Option<&'a Group>) -> Self {
        let gradients = Gradients::new(&state.decoder, &state.partition, group, algorithm.shard_gradients);
        let decays = |part: &Part| decays(algorithm, part);
        let decayed = state.partition.decayed(state.decoder.layout(), decays);
        let group_of_parts = group.filter(|_| state.decoder.is_hollow());
        let gathering =
            group_of_parts.map(|group| Gathering::new(group, &state.partition, &state.decoder, &state.own()));
        Self { group, gradients, gathering, decayed }
    }

    /// The weights of the state's decoder.
    pub(super) const fn weights<'b>(&'b self, decoder: &'b Decoder) -> Weights<'b> {
        Weights { decoder, gathering: self.gathering.as_ref() }
    }

    /// After the last update of a step: all weights are in the host's memory, where they are sharded.
    fn collect(&self, state: &mut TrainerState) -> Result<(), PolicyError> {
        if let Some(gathering) = &self.gathering {
            self.let_go(&state.decoder);
            let flat = gathering.collect(&state.decoder)?;
            state.decoder.set_flat(flat);
        }
        Ok(())
    }

    /// Lets go of sharded weights that were gathered.
    pub(super) fn let_go(&self, decoder: &Decoder) {
        self.weights(decoder).let_go();
    }

    /// The most sharded weights that were here at once, in elements, beside those that stay.
    pub(super) fn gathered(&self) -> Option<(i64, i64)> {
        self.gathering.as_ref().map(Gathering::most)
    }

    /// Buckets whose reduction began while backward ran, and all.
    pub(super) const fn overlapped(&self) -> (u64, u64) {
        self.gradients.overlapped()
    }

    /// Fails if this member was cancelled.
    fn check(&self) -> Result<(), PolicyError> {
        Ok(self.group.map_or(Ok(()), Group::check)?)
    }

    /// How many forwards the members make for an update, of which this one has `own`. Where they
    /// reduce after each, one that has fewer takes part in the others'.
    fn rounds(&self, own: usize, state: &TrainerState) -> Result<usize, PolicyError> {
        if !self.gradients.is_sharded() {
            return Ok(own.max(1));
        }
        self.most_rounds(own, state)
    }

    /// The most forwards that a member has, 1 or more.
    fn most_rounds(&self, own: usize, state: &TrainerState) -> Result<usize, PolicyError> {
        let ((rank, world), device) = ((state.partition.rank, state.partition.world), state.device());
        let counts = Tensor::zeros([world], (Kind::Double, device));
        let _ = counts.narrow(0, rank, 1).fill_(own as f64);
        self.add_up(&counts)?;
        Ok(f64::try_from(counts.max()).map_or(1, |most| most as usize).max(1))
    }

    /// Replaces a tensor by its sum over the members.
    pub(super) fn add_up(&self, tensor: &Tensor) -> Result<(), PolicyError> {
        Ok(self.group.map_or(Ok(()), |group| group.all_reduce(tensor))?)
    }
}

/// The inputs of a step besides the state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'a> {
    pub(super) algorithm: &'a Algorithm,
    /// The version trained on.
    pub(super) base: &'a Manifest,
    pub(super) batch: &'a Batch,
    /// The reference model of the KL penalty, if the algorithm has one.
    pub(super) reference: Option<Weights<'a>>,
}

/// Whether a parameter has weight decay.
fn decays(algorithm: &Algorithm, part: &Part) -> bool {
    if part.name.ends_with(".bias") {
        algorithm.decay_biases
    } else if !part.is_matrix() {
        algorithm.decay_norms
    } else {
        let embedding = part.name.contains("embed_tokens") || part.name.starts_with("lm_head");
        !embedding || algorithm.decay_embeddings
    }
}

impl Step<'_> {
    /// Makes the step on `state`. Returns means over all its passes.
    ///
    /// # Errors
    /// The batch cannot be trained on, a loss or gradient is not finite, or a member was lost.
    /// `state` must be dropped then.
    pub(super) fn run(
        &self,
        state: &mut TrainerState,
        member: &mut Member<'_>,
    ) -> Result<BTreeMap<String, f64>, PolicyError> {
        let samples = Samples::of(self.batch, state.decoder.config())?;
        let (device, place) = (state.device(), (state.partition.rank, state.partition.world));
        let forward = Forward {
            algorithm: self.algorithm,
            coefficient: coefficient(self.algorithm, self.base),
            temperature: samples.temperature,
            below: samples.below,
        };
        let share = Share::of(self.batch, self.algorithm, state.partition.place());
        let missing =
            samples.rows.iter().enumerate().find(|(index, row)| share.needs(*index) && !row.is_here());
        if let Some((index, _)) = missing {
            return Err(PolicyError::Impossible(format!(
                "the batch only names the turns of its rollout index={index}, which this member computes"
            )));
        }
        let mut rows = self.look(forward, state, member, samples.rows)?;
        let all: Vec<usize> = (0..rows.len()).collect();
        let own = own_rows(&rows, &all, state);
        let observations = exchange(self, &mut rows, &own, member, device)?;
        let (rows, scored) =
            score((rows, &observations), self.batch, self.algorithm, forward.coefficient, self.base);
        let critic = self.algorithm.advantage.has_critic();
        let step_metrics =
            StepMetrics::new(device, place, Beside { reference: self.reference.is_some(), critic });
        let mut pass = Pass { algorithm: self.algorithm, forward, step_metrics };
        let mut metrics = pass.run(state, member, &rows, self.batch)?;
        member.collect(state)?;
        metrics.extend(samples.metrics.into_iter().chain(scored));
        if self.reference.is_some() {
            metrics.insert("kl_coefficient".to_owned(), forward.coefficient);
        }
        Ok(metrics)
    }

    /// The forwards before the first update: log-probabilities under the reference model and the
    /// proximal policy, and the critic's values, as the algorithm has them.
    fn look(
        &self,
        forward: Forward<'_>,
        state: &TrainerState,
        member: &Member<'_>,
        rows: Vec<Row<Sampled>>,
    ) -> Result<Vec<Row<Looked>>, PolicyError> {
        let look = |weights: Weights<'_>| forward.look_at_all(weights, state, member, &rows);
        let reference = self.reference.map(look).transpose()?;
        if let Some(reference) = self.reference {
            reference.let_go();
        }
        let proximal = self.algorithm.old == OldPolicy::Proximal;
        let before =
            (proximal || self.algorithm.advantage.has_critic()).then(|| look(member.weights(&state.decoder)));
        let Look { log_p, values } = before.transpose()?.unwrap_or_default();
        let mut reference = reference.map(|seen| seen.log_p.into_iter());
        let mut old = Some(log_p).filter(|_| proximal).map(Vec::into_iter);
        let mut values = values.map(Vec::into_iter);
        let mut looked = |sampled: Sampled| Looked {
            old: next(&mut old).unwrap_or_else(|| sampled.behaviour.clone()),
            reference: next(&mut reference),
            values: next(&mut values),
            sampled,
        };
        Ok(rows.into_iter().map(|row| row.map(&mut looked)).collect())
    }
}

/// The passes of one step.
#[derive(Debug)]
struct Pass<'a> {
    algorithm: &'a Algorithm,
    forward: Forward<'a>,
    step_metrics: StepMetrics,
}

impl Pass<'_> {
    /// All epochs and minibatches of a step, on `state`. Returns means over all of them.
    fn run(
        &mut self,
        state: &mut TrainerState,
        member: &mut Member<'_>,
        rows: &[Row<ScoredTokens>],
        batch: &Batch,
    ) -> Result<BTreeMap<String, f64>, PolicyError> {
        let (mut norms, before) = (0.0, state.optimiser.updates);
        let rate = rate(self.algorithm, batch.base.0);
        for epoch in 0..self.algorithm.epochs {
            for minibatch in minibatches_of(batch, self.algorithm, rows.len(), epoch) {
                norms += self.update(state, member, rows, &minibatch, rate)?;
            }
        }
        member.add_up(self.step_metrics.tensor())?;
        let updates = (state.optimiser.updates - before) as f64;
        let mut metrics = self.step_metrics.report(updates);
        metrics.insert("updates".to_owned(), updates);
        metrics.insert("grad_norm".to_owned(), norms / updates.max(1.0));
        metrics.insert("learning_rate".to_owned(), rate);
        for old in OldPolicy::ALL {
            let in_force = f64::from(u8::from(old == self.algorithm.old));
            metrics.insert(format!("old_is_{}", old.name()), in_force);
        }
        match metrics.iter().find(|(_, value)| !value.is_finite()) {
            Some((name, value)) => Err(PolicyError::Impossible(format!("the step's {name} is {value}"))),
            None => Ok(metrics),
        }
    }

    /// One optimiser update. Returns the gradient's norm before clipping.
    fn update(
        &mut self,
        state: &mut TrainerState,
        member: &mut Member<'_>,
        rows: &[Row<ScoredTokens>],
        minibatch: &[usize],
        rate: f64,
    ) -> Result<f64, PolicyError> {
        let device = state.device();
        // Every member counts the whole minibatch, so the denominator needs no reduction.
        let whole = Whole::of(minibatch.iter().map(|&index| rows[index].counted()));
        let (aggregation, constant) = (self.algorithm.aggregation, self.algorithm.parameters.response_tokens);
        let share = |length: usize| whole.share(aggregation, constant, length);
        let mine = own_rows(rows, minibatch, state);
        let forwards = microbatches(rows, &mine, self.forward.most_tokens(device));
        let rounds = member.rounds(forwards.len(), state)?;
        member.gradients.clear();
        for round in 0..rounds {
            member.check()?;
            let reduces = member.gradients.is_sharded() || round + 1 == rounds;
            if reduces {
                member.gradients.begin();
            }
            let weights = Weights { decoder: &state.decoder, gathering: member.gathering.as_ref() };
            if let Some(indices) = forwards.get(round) {
                let samples: Vec<_> = indices.iter().map(|&index| &rows[index]).collect();
                let mut packed = Microbatch::pack(&samples, state.decoder.config(), device);
                let inputs = LossInputs::of(&samples, share, device);
                let (gradients, step_metrics) = (&mut member.gradients, &mut self.step_metrics);
                self.forward.backward(weights, &mut packed, inputs, gradients, step_metrics)?;
            } else if member.gathering.is_some() {
                self.forward.backward_idly(weights, &mut member.gradients)?;
            }
            if reduces {
                member.gradients.reduce()?;
            }
        }
        let mut gradient = member.gradients.own().shallow_clone();
        self.step_metrics.before_updates = false;
        let squares = adamw::squares(&gradient);
        member.add_up(&squares)?;
        let norm = f64::try_from(squares.sqrt()).unwrap_or(f64::NAN);
        if !norm.is_finite() {
            let update = state.optimiser.updates + 1;
            return Err(PolicyError::Impossible(format!("update={update} has a gradient of norm={norm}")));
        }
        let most = self.algorithm.max_grad_norm;
        if norm > most {
            let _ = gradient.g_mul_scalar_(most / norm);
        }
        let flat = state.decoder.flat().shallow_clone();
        let own = state.own();
        adamw::update(&own, &mut state.optimiser, &gradient, &member.decayed, (rate, self.algorithm));
        match &member.gathering {
            Some(gathering) => gathering.renew(&state.decoder, &own),
            None => member.gradients.gather(&state.partition, &own, &flat)?,
        }
        Ok(norm)
    }
}

/// The next rollout's numbers of those that were computed.
fn next(of: &mut Option<std::vec::IntoIter<Vec<f32>>>) -> Option<Vec<f32>> {
    of.as_mut()?.next()
}

/// The rows of these indices that a member computes.
fn own_rows<V>(rows: &[Row<V>], indices: &[usize], state: &TrainerState) -> Vec<usize> {
    state.partition.place().own(indices, |index| rows[index].length)
}

/// Distributes the numbers `[M]` of f32 to the rows of these indices, one row after another.
fn fill(indices: impl Iterator<Item = usize>, rows: &mut [Vec<f32>], numbers: &Tensor) {
    let mut numbers = Vec::<f32>::try_from(numbers).expect("one axis of f32").into_iter();
    for index in indices {
        rows[index].fill_with(|| numbers.next().expect("one number for each sampled token"));
    }
}

impl Forward<'_> {
    /// Log-probabilities and values of all `rows` under `decoder`. Each member computes its share,
    /// and all get all, because another minibatch has other shares.
    fn look_at_all(
        &self,
        weights: Weights<'_>,
        state: &TrainerState,
        member: &Member<'_>,
        rows: &[Row<Sampled>],
    ) -> Result<Look<Vec<Vec<f32>>>, PolicyError> {
        let decoder = weights.decoder;
        let device = decoder.device();
        let all: Vec<usize> = (0..rows.len()).collect();
        let zeros = || rows.iter().map(|row| vec![0.0_f32; row.sampled()]).collect::<Vec<_>>();
        let mut looked = Look { log_p: zeros(), values: decoder.critic().map(|_| zeros()) };
        let forwards = microbatches(rows, &own_rows(rows, &all, state), self.most_tokens(device));
        let rounds = match weights.gathering {
            Some(_) => member.most_rounds(forwards.len(), state)?,
            None => forwards.len(),
        };
        for round in 0..rounds {
            member.check()?;
            let Some(indices) = forwards.get(round) else {
                Self::look_idly(weights)?;
                continue;
            };
            let samples: Vec<_> = indices.iter().map(|&index| &rows[index]).collect();
            let mut packed = Microbatch::pack(&samples, decoder.config(), device);
            let mut seen = self.look(weights, &mut packed)?;
            for (rows, seen) in looked.each().zip(seen.each()) {
                fill(indices.iter().copied(), rows, seen);
            }
        }
        if member.group.is_some() {
            for rows in looked.each() {
                // Every number is from one member, and 0 at the others.
                let whole = Tensor::from_slice(&rows.concat()).to_device(device);
                member.add_up(&whole)?;
                fill(all.iter().copied(), rows, &whole);
            }
        }
        Ok(looked)
    }

    fn most_tokens(&self, device: Device) -> usize {
        let most = self.algorithm.tokens_per_microbatch as usize;
        if device.is_cuda() { most } else { most.min(CPU_MICROBATCH) }
    }
}
