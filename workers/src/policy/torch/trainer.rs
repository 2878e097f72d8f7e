//! Optimiser steps: a batch and a version become the next version. The same version and batch give the same
//! bytes, whether the state comes from files or is still in memory.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_schemas::blob::Sha;
use millrace_schemas::submit::ModelSpec;
use tch::Device;

use super::{MODEL_FILE, OPTIMIZER_FILE, enter, guarded};
use crate::policy::decoder::{Config, Decoder, Layout, write_tensors};
use crate::policy::{CONFIG_FILE, PolicyError, TrainStep, Trained, Trainer};
use crate::weights::LoadedVersion;

mod adamw;
mod gang;
mod pack;
mod samples;
mod state;
mod tally;
mod update;

pub use gang::{Alone, Gang};

use samples::Samples;
use state::State;
use update::Pass;

/// Trains decoders on libtorch.
#[derive(Debug)]
pub struct TorchTrainer<G = Alone> {
    device: Device,
    gang: G,
    /// The state that the last step left, under the hashes of its files.
    kept: Option<(Key, State)>,
}

/// Hashes of `model.safetensors` and `optimizer.safetensors`.
type Key = (Sha, Option<Sha>);

impl TorchTrainer {
    /// A trainer that is alone in its gang, on a GPU where there is one.
    #[must_use]
    pub fn new() -> Self {
        Self::in_gang(Alone)
    }
}

impl Default for TorchTrainer {
    fn default() -> Self {
        Self::new()
    }
}

impl<G: Gang> TorchTrainer<G> {
    /// A trainer that is a member of `gang`.
    #[must_use]
    pub fn in_gang(gang: G) -> Self {
        Self { device: enter(), gang, kept: None }
    }

    /// The state of `base`: the one in memory, if it is that of these files.
    fn state_of(&mut self, base: &LoadedVersion) -> Result<State, PolicyError> {
        let kept = self.kept.take();
        let hash = |name: &str| base.manifest.file(name).map(|blob| blob.sha256);
        match kept {
            Some((key, state)) if hash(MODEL_FILE) == Some(key.0) && hash(OPTIMIZER_FILE) == key.1 => {
                Ok(state)
            }
            _ => State::read(base, self.device),
        }
    }
}

impl<G: Gang> Trainer for TorchTrainer<G> {
    fn initialise(&mut self, model: &ModelSpec, seed: u64) -> Result<Trained, PolicyError> {
        guarded(|| {
            let config = Config::of_spec(model)?;
            let weights = Decoder::initial(&config, seed);
            let layout = Layout::of(&config);
            let model = write_tensors(&layout, &[("", &weights)], state::MODEL_METADATA);
            let files = BTreeMap::from([
                (CONFIG_FILE.to_owned(), Bytes::from(config.to_json())),
                (MODEL_FILE.to_owned(), Bytes::from(model)),
            ]);
            Ok(Trained { files, metrics: BTreeMap::from([("parameters".to_owned(), layout.len as f64)]) })
        })
    }

    fn step(&mut self, base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Trained, PolicyError> {
        guarded(|| {
            let batch = step.batch;
            if batch.base != base.version {
                let (wanted, given) = (batch.base, base.version);
                return Err(PolicyError::Impossible(format!("batch of base={wanted} on version={given}")));
            }
            let mut state = self.state_of(base)?;
            let samples = Samples::of(batch, step.algorithm.advantage, state.decoder.config())?;
            let pass = Pass {
                algorithm: step.algorithm,
                temperature: samples.temperature,
                below: samples.below,
                gang: &self.gang,
            };
            let mut metrics = pass.run(&mut state, samples.rows, batch)?;
            metrics.extend(samples.metrics);
            let mut files = state.write();
            let key = (Sha::of(&files[MODEL_FILE]), Some(Sha::of(&files[OPTIMIZER_FILE])));
            files.insert(CONFIG_FILE.to_owned(), base.file(CONFIG_FILE)?.clone());
            self.kept = Some((key, state));
            Ok(Trained { files, metrics })
        })
    }
}
