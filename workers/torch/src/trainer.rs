//! Optimiser steps: a batch and a version become the next version, alone or in a gang. The same
//! version and batch give the same bytes, whether the state comes from files, from other members or
//! from memory. In a gang of another size they give the same numbers to f32 rounding.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millrace_policy::directory::{self, VersionZero};
use millrace_policy::probe::PROBE_FILE;
use millrace_policy::{
    CONFIG_FILE, CRITIC_FILE, LoadedVersion, MODEL_FILE, PolicyError, TrainStep, Trained, Trainer,
};
use millrace_schemas::blob::Sha;
use millrace_schemas::submit::ModelSpec;
use tch::Device;

use crate::decoder::{Config, Decoder, Layout, write_tensors};
use crate::gang::{GangError, Group, RankAssignment};
use crate::libtorch::{enter, guarded};

mod per_token;
mod samples;
mod exchange;
mod score;
mod pack;
mod zero_partition;
mod gradients;
mod gathering;
mod critic;
mod layer_stack;
mod logits;
mod head;
mod forward;
mod update;
mod schedule;
mod adamw;
mod step_metrics;
mod state;
mod shards;
mod reference;
mod formation;
mod ready;
mod record;

use layer_stack::Weights;
use ready::{Identity, Kept, Ready};
use record::{probe, record_files};
use reference::Reference;
use update::{Member, Step};

/// Trains decoders on libtorch.
#[derive(Debug)]
pub struct TorchTrainer {
    device: Device,
    bucket_bytes: i64,
    /// The formation that this trainer was in last.
    group: Option<Group>,
    /// The state after the last step, and its version.
    kept: Option<Kept>,
    /// The reference model of the KL penalty.
    reference: Option<Reference>,
    overlapped: (u64, u64),
    gathered: Option<(i64, i64)>,
    computed_for: Duration,
}

impl TorchTrainer {
    /// A trainer on a GPU where there is one.
    #[must_use]
    pub fn new() -> Self {
        let device = enter();
        Self::with_buckets(zero_partition::bucket_bytes(device))
    }

    /// A trainer that reduces gradients in buckets of at most this many bytes; a larger leaf is a
    /// bucket of its own. All members of a gang must have the same.
    #[must_use]
    pub fn with_buckets(bytes: i64) -> Self {
        Self {
            device: enter(),
            bucket_bytes: bytes,
            group: None,
            kept: None,
            reference: None,
            overlapped: (0, 0),
            gathered: None,
            computed_for: Duration::ZERO,
        }
    }

    /// Of the last step: buckets of gradients whose reduction began while backward ran, and all
    /// buckets.
    #[must_use]
    pub const fn overlapped(&self) -> (u64, u64) {
        self.overlapped
    }

    /// Of the last step, where the weights were sharded: the most of them that were here at once
    /// beside this member's parts and what stays, and what stays. In elements.
    #[must_use]
    pub const fn gathered(&self) -> Option<(i64, i64)> {
        self.gathered
    }

    /// How long the forwards, backwards and updates of the last step took, without reading and
    /// writing files.
    #[must_use]
    pub const fn computed_for(&self) -> Duration {
        self.computed_for
    }

    /// Connects a new formation, or continues in the same one.
    fn join_gang(&mut self, assignment: Option<&RankAssignment>) -> Result<(), GangError> {
        let assignment = assignment.filter(|assignment| assignment.world > 1);
        let before = self.group.take();
        let Some(assignment) = assignment else { return Ok(()) };
        let same = |group: &Group| {
            let present = group.assignment();
            (&present.gang, present.rank, present.world)
                == (&assignment.gang, assignment.rank, assignment.world)
                && !group.is_broken()
        };
        self.group = match before.filter(same) {
            Some(mut group) => {
                group.reassign(assignment);
                Some(group)
            }
            None => Some(Group::form(assignment, self.device)?),
        };
        Ok(())
    }

    /// Loads the reference model that the step names, or drops one that it does not.
    fn take_reference(&mut self, step: &TrainStep<'_>) -> Result<(), PolicyError> {
        let Some(version) = step.reference.filter(|_| step.algorithm.kl.is_some()) else {
            self.reference = None;
            let missing =
                || PolicyError::Impossible("algorithm.kl wants a reference, and the step names none".into());
            return step.algorithm.kl.map_or(Ok(()), |_| Err(missing()));
        };
        if self.reference.as_ref().is_none_or(|reference| !reference.is(version)) {
            self.reference = Some(Reference::read(version, step, self.device)?);
        }
        if let Some(reference) = &mut self.reference {
            let group = self.group.as_ref().filter(|_| step.algorithm.shard_weights);
            reference.shard(group, self.bucket_bytes, self.device);
        }
        Ok(())
    }

    /// Moves weights, optimiser state and the reference model to `device`.
    fn move_to(&mut self, device: Device) {
        if let Some((_, state)) = &mut self.kept {
            state.move_to(device);
        }
        if let Some(reference) = &mut self.reference {
            reference.move_to(device);
        }
    }

    /// Makes the step. On failure the state before it stays, where it can be had again.
    fn make(&mut self, base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Trained, PolicyError> {
        self.take_reference(step)?;
        let group = self.group.as_ref();
        let gathering = self.reference.as_ref().and_then(|reference| reference.gathering(group));
        let reference = self.reference.as_ref();
        let reference = reference.map(|of| Weights { decoder: &of.decoder, gathering: gathering.as_ref() });
        let ready =
            Ready { base, step, reference, group, device: self.device, bucket_bytes: self.bucket_bytes };
        // `kept` is read before it is taken: a formation that fails to form leaves it as it is.
        let state = ready.state(&mut self.kept)?;
        let mut state = state.with_weights_sharded(step.algorithm.shard_weights);
        state.offload_optimiser(step.algorithm.offload_optimizer);
        // A collective in flight when a member is lost may still write into the state, so only a
        // copy is sure to be as before. Where memory is short it waits in the host's.
        let safe = if step.algorithm.shard_gradients { Device::Cpu } else { state.device() };
        let before = Identity::of(&base.manifest).filter(|_| group.is_some());
        let before = before.map(|of| (of, state.copy_on(safe)));
        let mut member = Member::new(&state, step.algorithm, group);
        let whole = Step { algorithm: step.algorithm, base: &base.manifest, batch: step.batch, reference };
        let since = Instant::now();
        let made = whole.run(&mut state, &mut member);
        self.computed_for = since.elapsed();
        (self.overlapped, self.gathered) = (member.overlapped(), member.gathered());
        let is_first = state.partition.rank == 0;
        let made = made.and_then(|metrics| {
            // Where weights are sharded, all members have them together.
            let probes = is_first || member.gathered().is_some();
            let probe = probes.then(|| probe(member.weights(&state.decoder))).transpose()?.flatten();
            member.let_go(&state.decoder);
            Ok((metrics, probe))
        });
        let (metrics, probe) = match made {
            Ok(made) => made,
            Err(error) => {
                self.kept = before;
                return Err(error);
            }
        };
        let model = state.model_file();
        let made = Identity::made(base, step, Sha::of(&model));
        let mut files = BTreeMap::new();
        if is_first {
            files.insert(MODEL_FILE.to_owned(), model);
            files.extend(state.critic_file().map(|critic| (CRITIC_FILE.to_owned(), critic)));
            files.insert(CONFIG_FILE.to_owned(), step.file(base, CONFIG_FILE)?);
            files.extend(probe.map(|probe| (PROBE_FILE.to_owned(), probe)));
        }
        if step.checkpoint {
            files.extend([state.shard()]);
        }
        self.kept = Some((made, state));
        Ok(Trained { files, metrics })
    }
}

impl Default for TorchTrainer {
    fn default() -> Self {
        Self::new()
    }
}

/// The files of version 0, and its number of parameters.
fn version_zero(model: &ModelSpec, seed: u64) -> Result<VersionZero, PolicyError> {
    if let Some(made) = directory::version_zero(model) {
        return Ok(made?);
    }
    let config = Config::of_spec(model)?;
    let weights = Decoder::initial(&config, seed);
    let layout = Layout::of(&config);
    let model = write_tensors(&layout, &[("", &weights)], state::MODEL_METADATA);
    let files = BTreeMap::from([
        (CONFIG_FILE.to_owned(), Bytes::from(config.to_json())),
        (MODEL_FILE.to_owned(), Bytes::from(model)),
    ]);
    Ok(VersionZero { files, parameters: layout.len as u64 })
}

impl Trainer for TorchTrainer {
    fn initialise(&mut self, model: &ModelSpec, seed: u64) -> Result<Trained, PolicyError> {
        guarded(|| {
            let VersionZero { mut files, parameters } = version_zero(model, seed)?;
            record_files(&mut files, self.device)?;
            let metrics = BTreeMap::from([("parameters".to_owned(), parameters as f64)]);
            Ok(Trained { files, metrics })
        })
    }

    fn step(&mut self, base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Trained, PolicyError> {
        let made = guarded(|| {
            let batch = step.batch;
            if batch.base != base.version {
                let (expected, given) = (batch.base, base.version);
                return Err(PolicyError::Impossible(format!("batch of base={expected} on version={given}")));
            }
            self.move_to(self.device);
            self.join_gang(step.assignment)?;
            self.make(base, step)
        });
        if made.is_err() {
            // The other members may wait for this one. When it leaves, they learn that the step is
            // void.
            if let Some(group) = self.group.take() {
                group.leave();
            }
        }
        made
    }

    fn leave_device(&mut self) -> Result<(), PolicyError> {
        guarded(|| {
            self.move_to(Device::Cpu);
            Ok(())
        })
    }
}
