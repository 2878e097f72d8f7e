//! The reference model of the KL penalty, which no step changes. Where the weights are sharded, a member
//! keeps its part of these too.

use millrace_policy::{LoadedVersion, PolicyError, TrainStep};
use millrace_schemas::blob::Sha;
use tch::{Device, Tensor};

use super::gathering::Gathering;
use super::state::{read_config, read_weights, without_critic};
use super::zero_partition::ZeroPartition;
use crate::decoder::Decoder;
use crate::gang::Group;

/// A version that is only looked at.
#[derive(Debug)]
pub(super) struct Reference {
    /// The hash of its manifest.
    sha: Sha,
    pub(super) decoder: Decoder,
    /// Where the decoder is hollow: which parts are this member's, and their weights as it computes
    /// with them. `[partition.own_len]`
    parts: Option<(ZeroPartition, Tensor)>,
}

impl Reference {
    /// Reads the whole version.
    ///
    /// # Errors
    /// A file cannot be fetched or is malformed.
    pub(super) fn read(
        version: &LoadedVersion,
        step: &TrainStep<'_>,
        device: Device,
    ) -> Result<Self, PolicyError> {
        let config = without_critic(&read_config(version, step)?);
        let weights = read_weights(version, step, &config)?;
        let decoder = match step.algorithm.shard_weights {
            true => Decoder::hollow(config, &weights, device),
            false => Decoder::new(config, &weights, device, false),
        };
        Ok(Self { sha: version.sha, decoder, parts: None })
    }

    pub(super) fn is(&self, version: &LoadedVersion) -> bool {
        self.sha == version.sha
    }

    /// Has members keep a part each, or this one all.
    pub(super) fn shard(&mut self, group: Option<&Group>, bucket_bytes: i64, device: Device) {
        let partition = group.map(|_| ZeroPartition::over(group, self.decoder.config(), bucket_bytes));
        let present = self.parts.as_ref().map(|(partition, _)| partition);
        if present == partition.as_ref() && self.decoder.is_hollow() == partition.is_some() {
            return;
        }
        let (config, flat) = (self.decoder.config().clone(), self.decoder.flat().detach());
        self.decoder = match partition {
            Some(_) => Decoder::hollow(config, &flat, device),
            None => Decoder::new(config, &flat, device, false),
        };
        let flat = self.decoder.flat();
        self.parts = partition.map(|partition| {
            let own = partition.own(flat).to_kind(flat.kind()).to_device(device);
            (partition, own)
        });
    }

    /// How its weights are gathered, where they are sharded.
    pub(super) fn gathering<'a>(&'a self, group: Option<&'a Group>) -> Option<Gathering<'a>> {
        let (partition, own) = self.parts.as_ref()?;
        Some(Gathering::new(group?, partition, &self.decoder, own))
    }

    /// Moves it to another device.
    pub(super) fn move_to(&mut self, device: Device) {
        self.decoder.to_device(device);
        if let Some((_, own)) = &mut self.parts {
            *own = own.to_device(device);
        }
    }
}
