//! Weights and optimiser state, in memory and as the files of a version.

use bytes::Bytes;
use millrace_policy::{CONFIG_FILE, CRITIC_FILE, LoadedVersion, MODEL_FILE, PolicyError, TrainStep};
use millrace_schemas::PolicyVersion;
use tch::{Device, Kind, Tensor};

use super::shards;
use super::zero_partition::{ZeroPartition, copy_shared};
use crate::decoder::{Config, Decoder, Layout, kind, read_tensors, write_tensors};

/// The metadata that transformers expects in a file of weights.
pub(super) const MODEL_METADATA: (&str, &str) = ("format", "pt");

/// The optimiser's state of the parts that a member owns: AdamW's moments, and where the model
/// computes in fewer bits the weights in f32, whose small changes those bits would lose
/// (Micikevicius et al., "Mixed Precision Training", 2018).
#[derive(Debug)]
pub(super) struct Optimiser {
    /// `[partition.own_len]`, 0 in the padding.
    pub(super) first: Tensor,
    /// `[partition.own_len]`, 0 in the padding.
    pub(super) second: Tensor,
    /// `[partition.own_len]`, 0 in the padding. `None` where the decoder has all weights in f32,
    /// and until a state is made.
    pub(super) masters: Option<Tensor>,
    /// It waits in the host's memory, wherever the weights are.
    pub(super) offloaded: bool,
    /// Updates made since version 0.
    pub(super) updates: u64,
}

impl Optimiser {
    /// That of version 0.
    pub(super) fn empty(partition: &ZeroPartition, device: Device) -> Self {
        let zeros = || Tensor::zeros([partition.own_len], (Kind::Float, device));
        Self { first: zeros(), second: zeros(), masters: None, offloaded: false, updates: 0 }
    }

    /// Room for the whole state of a model of this config.
    pub(super) fn empty_of(config: &Config, partition: &ZeroPartition, device: Device) -> Self {
        let mut empty = Self::empty(partition, device);
        if kind(config) != Kind::Float {
            empty.masters_to_fill();
        }
        empty
    }

    /// All its tensors, in the order of a shard.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.first, &self.second].into_iter().chain(&self.masters)
    }

    /// Those that are not the version's own weights: in f32 the masters are.
    pub(super) fn stored(&self, config: &Config) -> impl Iterator<Item = &Tensor> {
        self.tensors().take(if kind(config) == Kind::Float { 2 } else { 3 })
    }

    /// The buffer of the weights in f32.
    pub(super) fn masters_to_fill(&mut self) -> &Tensor {
        self.masters.get_or_insert_with(|| self.first.zeros_like())
    }

    /// Copies the parts that `own` has in common with `partition`, from `other`.
    pub(super) fn take(&mut self, own: &ZeroPartition, other: &Self, partition: &ZeroPartition) {
        self.updates = other.updates;
        let (from, to) = (partition.ranges(), own.ranges());
        copy_shared(&from, &other.first, &to, &self.first);
        copy_shared(&from, &other.second, &to, &self.second);
        if let Some(masters) = &other.masters {
            copy_shared(&from, masters, &to, self.masters_to_fill());
        }
    }

    /// Where `made` differs from `committed`, both `[layout.len]`, the master weights become the
    /// committed ones.
    pub(super) fn follow(&mut self, partition: &ZeroPartition, committed: &Tensor, made: &Tensor) {
        if let Some(masters) = &mut self.masters {
            let own = |flat| partition.own(flat).to_kind(Kind::Float).to_device(masters.device());
            let [committed, made] = [committed, made].map(own);
            *masters = masters.where_self(&made.eq_tensor(&committed), &committed);
        }
    }

    /// Where it waits while its weights are on `device`.
    fn home(&self, device: Device) -> Device {
        if self.offloaded { Device::Cpu } else { device }
    }

    /// Moves it to where it waits for weights on `device`.
    fn move_to(&mut self, device: Device) {
        let (home, pinned) = (self.home(device), self.offloaded && device.is_cuda());
        for tensor in [&mut self.first, &mut self.second].into_iter().chain(&mut self.masters) {
            *tensor = tensor.to_device(home);
            if pinned {
                // A GPU copies pinned memory at the full speed of its link.
                *tensor = tensor.pin_memory(device);
            }
        }
    }

    fn copy_on(&self, device: Device) -> Self {
        let copy = |tensor: &Tensor| copy_on(tensor, self.home(device));
        let masters = self.masters.as_ref().map(copy);
        let (offloaded, updates) = (self.offloaded, self.updates);
        Self { first: copy(&self.first), second: copy(&self.second), masters, offloaded, updates }
    }
}

fn copy_on(tensor: &Tensor, device: Device) -> Tensor {
    tensor.to_device_(device, tensor.kind(), false, true)
}

/// Everything that a step changes.
#[derive(Debug)]
pub(super) struct TrainerState {
    pub(super) decoder: Decoder,
    pub(super) partition: ZeroPartition,
    pub(super) optimiser: Optimiser,
}

impl TrainerState {
    /// A state with these weights `[layout.len]`. Where the model computes in fewer bits than f32
    /// and the optimiser brings no weights in f32, they begin with these. With `sharded` the
    /// decoder is hollow, and this member's parts of the weights are the optimiser's.
    pub(super) fn new(
        config: Config,
        flat: &Tensor,
        (partition, sharded): (ZeroPartition, bool),
        mut optimiser: Optimiser,
        device: Device,
    ) -> Self {
        let sharded = sharded && partition.world > 1;
        if kind(&config) == Kind::Float {
            optimiser.masters = None;
        }
        if optimiser.masters.is_none() && (sharded || kind(&config) != Kind::Float) {
            let home = optimiser.first.device();
            let own = partition.own(&flat.to_device(if sharded { Device::Cpu } else { home }));
            optimiser.masters = Some(own.to_kind(Kind::Float).to_device_(home, Kind::Float, false, true));
        }
        let decoder = match sharded {
            true => Decoder::hollow(config, flat, device),
            false => Decoder::new(config, flat, device, true),
        };
        Self { decoder, partition, optimiser }
    }

    /// The same with weights of which members keep a part each, or all.
    pub(super) fn with_weights_sharded(self, sharded: bool) -> Self {
        if self.decoder.is_hollow() == (sharded && self.partition.world > 1) {
            return self;
        }
        let (device, flat) = (self.device(), self.decoder.flat().detach());
        let Self { decoder, partition, optimiser } = self;
        Self::new(decoder.config().clone(), &flat, (partition, sharded), optimiser, device)
    }

    /// Moves everything to another device. On the same one nothing changes.
    pub(super) fn move_to(&mut self, device: Device) {
        self.decoder.to_device(device);
        self.optimiser.move_to(device);
    }

    /// Has the optimiser's state wait in the host's memory between updates, or not.
    pub(super) fn offload_optimiser(&mut self, offloaded: bool) {
        self.optimiser.offloaded = offloaded;
        self.optimiser.move_to(self.device());
    }

    /// Where its weights are.
    pub(super) fn device(&self) -> Device {
        self.decoder.device()
    }

    /// A copy on `device` that shares no memory with it but the weights of a hollow decoder, to
    /// which nothing writes.
    pub(super) fn copy_on(&self, device: Device) -> Self {
        let (sharded, flat) = (self.decoder.is_hollow(), self.decoder.flat().detach());
        let flat = if sharded { flat } else { copy_on(&flat, device) };
        let config = self.decoder.config().clone();
        let optimiser = self.optimiser.copy_on(device);
        Self::new(config, &flat, (self.partition.clone(), sharded), optimiser, device)
    }

    /// This member's parts of the weights in f32, to be updated in place: `[partition.own_len]`.
    /// Alone, where the model computes in f32, they are the decoder's own.
    pub(super) fn own(&self) -> Tensor {
        match &self.optimiser.masters {
            Some(masters) => masters.shallow_clone(),
            None => self.partition.own(self.decoder.flat()),
        }
    }

    /// `model.safetensors`.
    pub(super) fn model_file(&self) -> Bytes {
        // Without a critic, which comes last: programs that read model directories know none.
        let layout = Layout::of(&without_critic(self.decoder.config()));
        Bytes::from(write_tensors(&layout, &[("", self.decoder.flat())], MODEL_METADATA))
    }

    /// `critic.safetensors`, where there is a critic.
    pub(super) fn critic_file(&self) -> Option<Bytes> {
        self.decoder.critic()?;
        let layout = Layout::of_critic(self.decoder.config());
        let flat = self.decoder.flat();
        let critic = flat.narrow(0, flat.size()[0] - layout.len, layout.len);
        Some(Bytes::from(write_tensors(&layout, &[("", &critic)], MODEL_METADATA)))
    }

    /// This member's shard of the optimiser's state: name and content.
    pub(super) fn shard(&self) -> (String, Bytes) {
        (
            shards::name(self.partition.rank, self.partition.world),
            shards::write(&self.partition, &self.optimiser, self.decoder.config()),
        )
    }
}

/// The model's shape from a version's `config.json`, with a critic where the step's algorithm has
/// one.
pub(super) fn read_config(base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Config, PolicyError> {
    let critic = step.algorithm.advantage.has_critic();
    Ok(Config { critic, ..Config::read(&step.file(base, CONFIG_FILE)?)? })
}

/// The same without a critic.
pub(super) fn without_critic(config: &Config) -> Config {
    Config { critic: false, ..config.clone() }
}

/// A version's weights `[layout.len]`, on the CPU. Version 0 may have no critic, which then expects
/// nothing: 0.
pub(super) fn read_weights(
    base: &LoadedVersion,
    step: &TrainStep<'_>,
    config: &Config,
) -> Result<Tensor, PolicyError> {
    let layout = Layout::of(&without_critic(config));
    let weights = read_tensors(MODEL_FILE, &step.file(base, MODEL_FILE)?, "", &layout)?;
    if !config.critic {
        return Ok(weights);
    }
    let layout = Layout::of_critic(config);
    let critic = if base.version == PolicyVersion(0) && base.manifest.file(CRITIC_FILE).is_none() {
        Tensor::zeros([layout.len], (Kind::Float, Device::Cpu))
    } else {
        read_tensors(CRITIC_FILE, &step.file(base, CRITIC_FILE)?, "", &layout)?
    };
    Ok(Tensor::cat(&[weights, critic], 0))
}
