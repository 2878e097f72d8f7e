//! Gets the state for a step: from memory, from the other members, or from the newest checkpoint,
//! after which the steps since are redone.

use millrace_policy::{LoadedVersion, MODEL_FILE, PolicyError, TrainStep};
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::{BlobRef, PolicyVersion};
use tch::{Device, Kind, Tensor};

use super::formation::{Part, Plan, Record, Source, exchange};
use super::layer_stack::Weights;
use super::shards::{self, Covered};
use super::state::{Optimiser, TrainerState, read_config, read_weights};
use super::update::{Member, Step};
use super::zero_partition::ZeroPartition;
use crate::decoder::{Config, Layout};
use crate::gang::Group;

/// The version of a state in memory. The hash of its weights does not suffice: a step that moves
/// nothing leaves them as they were and still counts as an update.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    parent: Option<Sha>,
    batch: Option<BlobRef>,
    model: Sha,
}

impl Identity {
    /// The version that was committed.
    pub(super) fn of(manifest: &Manifest) -> Option<Self> {
        let model = manifest.file(MODEL_FILE)?.sha256;
        Some(Self { parent: manifest.parent, batch: manifest.batch, model })
    }

    /// The version of a step that is not committed yet.
    pub(super) const fn made(base: &LoadedVersion, step: &TrainStep<'_>, model: Sha) -> Self {
        Self { parent: Some(base.sha), batch: Some(step.blob), model }
    }
}

/// The rank that reads weights for all.
const READER: u32 = 0;

/// Names and content of a full set of shards, by rank.
type Shards = Vec<(String, BlobRef)>;

/// A state in memory, and its version.
pub(super) type Kept = (Identity, TrainerState);

/// The inputs for getting a state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ready<'a> {
    pub(super) base: &'a LoadedVersion,
    pub(super) step: &'a TrainStep<'a>,
    pub(super) reference: Option<Weights<'a>>,
    pub(super) group: Option<&'a Group>,
    pub(super) device: Device,
    pub(super) bucket_bytes: i64,
}

impl Ready<'_> {
    /// The state of the version that is trained on.
    ///
    /// # Errors
    /// A member was lost, or a file cannot be fetched or is malformed.
    pub(super) fn state(&self, memory: &mut Option<Kept>) -> Result<TrainerState, PolicyError> {
        let identity = Identity::of(&self.base.manifest);
        memory.take_if(|(of, _)| Some(&*of) != identity.as_ref());
        let kept = memory.as_ref().map(|(_, state)| state);
        let made = match self.group {
            None => self.alone(kept)?,
            Some(group) => self.in_gang(kept, group)?,
        };
        let kept = memory.take().map(|(_, state)| state);
        Ok(made.or(kept).expect("nothing is made only where something is kept"))
    }

    /// `None` if the state in memory can be used as it is.
    fn alone(&self, kept: Option<&TrainerState>) -> Result<Option<TrainerState>, PolicyError> {
        if kept.is_some_and(|state| state.partition.world == 1) {
            return Ok(None);
        }
        self.restored(kept.map(|state| state.decoder.flat().copy())).map(Some)
    }

    /// As [`Self::alone`], in agreement with the other members.
    fn in_gang(
        &self,
        kept: Option<&TrainerState>,
        group: &Group,
    ) -> Result<Option<TrainerState>, PolicyError> {
        let holds = kept.map(|state| Part { world: state.partition.world, rank: state.partition.rank });
        let records = exchange(group, &Record::of(self.base, self.step, holds), self.device)?;
        let plan = Plan::of(&records);
        if plan.moments == Source::InPlace {
            return Ok(None);
        }
        tracing::info!(base = %self.base.version, rank = group.assignment().rank, world = group.assignment().world, ?plan,
            "the gang formed");
        self.together(kept, group, &plan).map(Some)
    }

    fn together(
        &self,
        kept: Option<&TrainerState>,
        group: &Group,
        plan: &Plan,
    ) -> Result<TrainerState, PolicyError> {
        let config = read_config(self.base, self.step)?;
        let weights = if plan.has_weights {
            let weights = match kept {
                Some(state) => {
                    state.decoder.flat().to_device_(self.weights_device(), Kind::Float, false, true)
                }
                None => self.empty_weights(&config),
            };
            if let Some(root) = plan.weights_from {
                broadcast(group, &weights, root, self.device)?;
            }
            Some(weights)
        } else {
            None
        };
        let Source::Members(owners) = &plan.moments else { return self.restored(weights) };
        let partition = self.partition(&config);
        let lengths = Layout::of(&config).leaf_lengths();
        let mut optimiser = self.empty_optimiser(&partition);
        for (part, owner) in owners {
            let theirs = ZeroPartition::of(&lengths, part.rank as u32, part.world as u32, self.bucket_bytes);
            let part = kept.filter(|_| group.assignment().rank == *owner).map(|state| &state.optimiser);
            let empty = Optimiser::empty_of(&config, &theirs, self.optimiser_device());
            let sent = broadcast_part(group, *owner, empty, part, self.device)?;
            optimiser.take(&partition, &sent, &theirs);
        }
        let weights = weights.expect("a member with moments has weights");
        Ok(self.made(config, &weights, partition, optimiser))
    }

    /// The state from files: that of the newest checkpoint at or below the base, after which the
    /// steps since are redone. `weights` are the base's, if they are in memory.
    fn restored(&self, weights: Option<Tensor>) -> Result<TrainerState, PolicyError> {
        let config = read_config(self.base, self.step)?;
        let partition = self.partition(&config);
        let (version, shards, since) = self.checkpoint()?;
        let mut optimiser = self.empty_optimiser(&partition);
        let mut covered = Covered::default();
        for (name, _) in shards.iter().flatten() {
            covered.add(shards::read(name, &self.step.file(&version, name)?, &partition, &mut optimiser)?);
        }
        let own: i64 = partition.ranges().iter().map(|range| range.len).sum();
        if shards.is_some() && !covered.all(own) {
            let version = version.version;
            return Err(PolicyError::Impossible(format!(
                "the optimiser's state of {version} has {covered:?} of this member's elements={own}"
            )));
        }
        if since.is_empty() {
            let weights = match weights {
                Some(weights) => weights,
                None => self.weights_of(self.base, &config)?,
            };
            return Ok(self.made(config, &weights, partition, optimiser));
        }
        let start = self.weights_of(&version, &config)?;
        let mut state = self.made(config, &start, partition, optimiser);
        tracing::info!(checkpoint = %version.version, base = %self.base.version, steps = since.len(),
            "redoing steps from the stored batches, for the optimiser's state");
        let mut base = &version.manifest;
        for manifest in since.iter().rev() {
            self.replay(&mut state, base, manifest)?;
            base = manifest;
        }
        self.take_committed(state, weights)
    }

    /// The weights of a version `[layout.len]`, from its files. In a gang one member reads them, and the others get them
    /// from it: the object store serves them once, however large the gang.
    fn weights_of(&self, version: &LoadedVersion, config: &Config) -> Result<Tensor, PolicyError> {
        let Some(group) = self.group else { return read_weights(version, self.step, config) };
        let weights = if group.assignment().rank == READER {
            read_weights(version, self.step, config)?.to_device(self.weights_device())
        } else {
            self.empty_weights(config)
        };
        broadcast(group, &weights, READER, self.device)?;
        Ok(weights)
    }

    /// The newest checkpoint at or below the base; its shards, which version 0 does not need; and
    /// the manifests since, newest first.
    fn checkpoint(&self) -> Result<(LoadedVersion, Option<Shards>, Vec<Manifest>), PolicyError> {
        let mut since = Vec::new();
        let mut version = self.base.clone();
        while version.version > PolicyVersion(0) {
            if let Some(shards) = shards::complete_set(&version.manifest) {
                return Ok((version, Some(shards), since));
            }
            let before = self.before(&version)?;
            since.push(std::mem::replace(&mut version, before).manifest);
        }
        Ok((version, None, since))
    }

    /// The version before `version`, without its files.
    fn before(&self, version: &LoadedVersion) -> Result<LoadedVersion, PolicyError> {
        let number = PolicyVersion(version.version.0 - 1);
        let Some(sha) = version.manifest.parent else {
            return Err(PolicyError::Impossible(format!("version={} names no parent", version.version)));
        };
        let manifest = self.step.past.manifest(number, sha)?;
        Ok(LoadedVersion { version: number, manifest, sha, files: Default::default() })
    }

    /// Redoes the step of a committed version, whose base was `base`.
    fn replay(
        &self,
        state: &mut TrainerState,
        base: &Manifest,
        manifest: &Manifest,
    ) -> Result<(), PolicyError> {
        let version = manifest.version;
        let refuse =
            |why: String| PolicyError::Impossible(format!("version={version} cannot be redone: {why}"));
        let blob = manifest.batch.ok_or_else(|| refuse("it names no batch".to_owned()))?;
        let batch = self.step.past.batch(&blob, self.step.algorithm, self.step.place())?;
        if batch.base.next() != version {
            return Err(refuse(format!("its batch is of base={}", batch.base)));
        }
        let Self { reference, step: TrainStep { algorithm, .. }, .. } = *self;
        let mut member = Member::new(state, algorithm, self.group);
        Step { algorithm, base, batch: &batch, reference }.run(state, &mut member)?;
        Ok(())
    }

    /// The committed weights count, not the redone ones: a gang of another size rounds otherwise.
    fn take_committed(
        &self,
        state: TrainerState,
        weights: Option<Tensor>,
    ) -> Result<TrainerState, PolicyError> {
        let committed = match weights {
            Some(weights) => weights,
            None => self.weights_of(self.base, state.decoder.config())?,
        };
        let committed = committed.to_device(state.decoder.flat().device()).to_kind(Kind::Float);
        let off = f64::try_from((state.decoder.flat() - &committed).abs().max()).unwrap_or(f64::NAN);
        if off == 0.0 {
            tracing::info!(base = %self.base.version, "the redone weights are the committed ones");
        } else {
            tracing::warn!(base = %self.base.version, largest_difference = off,
                "the redone weights differ from the committed ones, which count");
        }
        let TrainerState { decoder, partition, mut optimiser } = state;
        optimiser.follow(&partition, &committed, decoder.flat());
        Ok(self.made(decoder.config().clone(), &committed, partition, optimiser))
    }

    fn made(
        &self,
        config: Config,
        weights: &Tensor,
        partition: ZeroPartition,
        optimiser: Optimiser,
    ) -> TrainerState {
        let sharded = self.step.algorithm.shard_weights;
        TrainerState::new(config, weights, (partition, sharded), optimiser, self.device)
    }

    /// Where all weights are: sharded ones in the host's memory.
    fn weights_device(&self) -> Device {
        if self.step.algorithm.shard_weights { Device::Cpu } else { self.device }
    }

    fn empty_weights(&self, config: &Config) -> Tensor {
        Tensor::zeros([Layout::of(config).len], (Kind::Float, self.weights_device()))
    }

    /// Where the optimiser's state is made.
    fn optimiser_device(&self) -> Device {
        if self.step.algorithm.offload_optimizer { Device::Cpu } else { self.device }
    }

    /// Room for the optimiser's state of the parts of a member.
    fn empty_optimiser(&self, partition: &ZeroPartition) -> Optimiser {
        let offloaded = self.step.algorithm.offload_optimizer;
        Optimiser { offloaded, ..Optimiser::empty(partition, self.optimiser_device()) }
    }

    fn partition(&self, config: &Config) -> ZeroPartition {
        ZeroPartition::over(self.group, config, self.bucket_bytes)
    }
}

/// Elements that visit the device at once where the state is not there.
const SENT: i64 = 64 << 20;

/// Broadcasts the `owner`'s part of the optimiser's state into `sent` at all members, which send and
/// receive on `device`. `part` is set at the owner only.
fn broadcast_part(
    group: &Group,
    owner: u32,
    mut sent: Optimiser,
    part: Option<&Optimiser>,
    device: Device,
) -> Result<Optimiser, PolicyError> {
    let updates = Tensor::zeros([1], (Kind::Int64, device));
    if let Some(part) = part {
        for (to, from) in sent.tensors().zip(part.tensors()) {
            to.shallow_clone().copy_(from);
        }
        let _ = updates.shallow_clone().fill_(part.updates as i64);
    }
    group.broadcast(&updates, owner)?;
    for tensor in sent.tensors() {
        broadcast(group, tensor, owner, device)?;
    }
    sent.updates = i64::try_from(updates.get(0)).unwrap_or(0).max(0) as u64;
    Ok(sent)
}

/// Replaces a tensor `[n]` at every member by that of `root`. They send and receive on `device`,
/// which a tensor elsewhere visits in parts.
fn broadcast(group: &Group, tensor: &Tensor, root: u32, device: Device) -> Result<(), PolicyError> {
    if tensor.device() == device {
        return Ok(group.broadcast(tensor, root)?);
    }
    let len = tensor.size()[0];
    for from in (0..len).step_by(SENT as usize) {
        let mut span = tensor.narrow(0, from, SENT.min(len - from));
        let here = span.to_device(device);
        group.broadcast(&here, root)?;
        span.copy_(&here);
    }
    Ok(())
}
