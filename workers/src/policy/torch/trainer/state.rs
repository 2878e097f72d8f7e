//! Weights and optimiser state, in memory and as the files of a version.

use std::collections::BTreeMap;

use bytes::Bytes;
use safetensors::SafeTensors;
use tch::{Device, Tensor};

use super::{MODEL_FILE, OPTIMIZER_FILE};
use crate::policy::decoder::{Config, Decoder, Layout, read_tensors, write_tensors};
use crate::policy::{CONFIG_FILE, PolicyError};
use crate::weights::LoadedVersion;

/// What transformers wants to find in a file of weights.
pub(super) const MODEL_METADATA: (&str, &str) = ("format", "pt");
/// Before the names of AdamW's moments, as in `torch.optim`.
const FIRST: &str = "exp_avg.";
const SECOND: &str = "exp_avg_sq.";
/// How many updates the moments have seen, in the file's header.
const UPDATES: &str = "updates";

/// Everything that a step changes.
#[derive(Debug)]
pub(super) struct State {
    pub(super) decoder: Decoder,
    /// `[layout.len]`
    pub(super) first_moment: Tensor,
    /// `[layout.len]`
    pub(super) second_moment: Tensor,
    /// Updates made since version 0.
    pub(super) updates: u64,
}

impl State {
    /// The state of a version. One without optimiser state starts with empty moments.
    pub(super) fn read(base: &LoadedVersion, device: Device) -> Result<Self, PolicyError> {
        let config = Config::read(base.file(CONFIG_FILE)?)?;
        let layout = Layout::of(&config);
        let weights = read_tensors(MODEL_FILE, base.file(MODEL_FILE)?, "", &layout)?;
        let decoder = Decoder::new(config, &weights, device, true);
        let Some(moments) = base.files.get(OPTIMIZER_FILE) else {
            let (first_moment, second_moment) = (decoder.flat().zeros_like(), decoder.flat().zeros_like());
            return Ok(Self { decoder, first_moment, second_moment, updates: 0 });
        };
        let read =
            |prefix| read_tensors(OPTIMIZER_FILE, moments, prefix, &layout).map(|t| t.to_device(device));
        Ok(Self {
            first_moment: read(FIRST)?,
            second_moment: read(SECOND)?,
            updates: read_updates(moments)?,
            decoder,
        })
    }

    /// The files of the version, besides `config.json`.
    pub(super) fn write(&self) -> BTreeMap<String, Bytes> {
        let layout = self.decoder.layout();
        let model = write_tensors(layout, &[("", self.decoder.flat())], MODEL_METADATA);
        let moments = [(FIRST, &self.first_moment), (SECOND, &self.second_moment)];
        let moments = write_tensors(layout, &moments, (UPDATES, &self.updates.to_string()));
        BTreeMap::from([
            (MODEL_FILE.to_owned(), Bytes::from(model)),
            (OPTIMIZER_FILE.to_owned(), Bytes::from(moments)),
        ])
    }
}

fn read_updates(moments: &[u8]) -> Result<u64, PolicyError> {
    let header = SafeTensors::read_metadata(moments).ok().and_then(|(_, header)| header.metadata().clone());
    let updates = header.and_then(|header| header.get(UPDATES).and_then(|word| word.parse().ok()));
    updates.ok_or_else(|| PolicyError::Impossible(format!("{OPTIMIZER_FILE} does not say its {UPDATES}")))
}
