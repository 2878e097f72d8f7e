//! Weights and optimiser state, in memory and as the files of a version.

use bytes::Bytes;
use tch::{Device, Kind, Tensor};

use super::deal::{Deal, copy_shared};
use super::shards;
use crate::policy::decoder::{Config, Decoder, Layout, read_tensors, write_tensors};
use crate::policy::{CONFIG_FILE, MODEL_FILE, PolicyError, TrainStep};
use crate::weights::LoadedVersion;

/// What transformers wants to find in a file of weights.
pub(super) const MODEL_METADATA: (&str, &str) = ("format", "pt");

/// AdamW's moments of the parts that a member owns.
#[derive(Debug)]
pub(super) struct Moments {
    /// `[deal.own_len]`, 0 in the padding.
    pub(super) first: Tensor,
    /// `[deal.own_len]`, 0 in the padding.
    pub(super) second: Tensor,
    /// Updates made since version 0.
    pub(super) updates: u64,
}

impl Moments {
    /// Those of version 0.
    pub(super) fn empty(deal: &Deal, device: Device) -> Self {
        let zeros = || Tensor::zeros([deal.own_len], (Kind::Float, device));
        Self { first: zeros(), second: zeros(), updates: 0 }
    }

    /// Takes over what `other`, of another deal, has of the parts of this. Says how many elements those were.
    pub(super) fn take(&mut self, own: &Deal, other: &Self, deal: &Deal) -> i64 {
        self.updates = other.updates;
        let (from, to) = (deal.pieces(), own.pieces());
        copy_shared(&from, &other.first, &to, &self.first);
        copy_shared(&from, &other.second, &to, &self.second)
    }

    fn copy(&self) -> Self {
        Self { first: self.first.copy(), second: self.second.copy(), updates: self.updates }
    }
}

/// Everything that a step changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) decoder: Decoder,
    pub(super) deal: Deal,
    pub(super) moments: Moments,
}

impl State {
    /// A state with these weights `[layout.len]`.
    pub(super) fn new(config: Config, flat: &Tensor, deal: Deal, moments: Moments, device: Device) -> Self {
        Self { decoder: Decoder::new(config, flat, device, true), deal, moments }
    }

    /// A copy that shares no memory with it.
    pub(super) fn copy(&self) -> Self {
        let flat = self.decoder.flat().detach().copy();
        let config = self.decoder.config().clone();
        Self::new(config, &flat, self.deal.clone(), self.moments.copy(), flat.device())
    }

    /// `model.safetensors`.
    pub(super) fn model_file(&self) -> Bytes {
        let weights = [("", self.decoder.flat())];
        Bytes::from(write_tensors(self.decoder.layout(), &weights, MODEL_METADATA))
    }

    /// This member's shard of the optimiser's state: name and content.
    pub(super) fn shard(&self) -> (String, Bytes) {
        (shards::name(self.deal.rank, self.deal.world), shards::write(&self.deal, &self.moments))
    }
}

/// The model's shape as a version's `config.json` says it.
pub(super) fn read_config(base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Config, PolicyError> {
    Ok(Config::read(&step.file(base, CONFIG_FILE)?)?)
}

/// A version's weights `[layout.len]`, on the CPU.
pub(super) fn read_weights(
    base: &LoadedVersion,
    step: &TrainStep<'_>,
    config: &Config,
) -> Result<Tensor, PolicyError> {
    Ok(read_tensors(MODEL_FILE, &step.file(base, MODEL_FILE)?, "", &Layout::of(config))?)
}
