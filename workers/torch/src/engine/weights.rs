//! Weights on their way into an engine: read, verified and on the device before the engine hears of them.

use millrace_kernels::cuda::{self, OwnStream};
use millrace_policy::decoder::{Config, Layout};
use millrace_policy::stop_criteria::StopCriteria;
use millrace_policy::{CONFIG_FILE, Engine, LoadedVersion, MODEL_FILE, PolicyError, ReadyWeights};
use millrace_schemas::PolicyVersion;
use tch::Device;

use super::{EngineSettings, TorchEngine};
use crate::decoder::{Decoder, kind, read_tensors_to};
use crate::gpu_kernels;
use crate::libtorch::{enter, guarded};

/// A decoder's weights on the device, in the numbers that it samples with.
#[derive(Debug)]
pub struct TorchWeights {
    pub(super) version: PolicyVersion,
    pub(super) decoder: Decoder,
    pub(super) stop_criteria: StopCriteria,
}

impl TorchWeights {
    /// Reads a version's files to the device. All reads of the process share one stream, apart from
    /// that of the engines, which sample meanwhile. Until an engine drops its old weights the device
    /// holds both.
    ///
    /// # Errors
    /// The files are not a decoder that can be computed here, or memory is short.
    pub fn read(weights: &LoadedVersion) -> Result<Self, PolicyError> {
        let device = enter();
        guarded(|| {
            // The checks of its kernels, if they were not made yet: here no engine waits for them.
            gpu_kernels::train(device);
            let _stream = OwnStream::enter();
            let decoder = read_decoder(weights, device)?;
            // The engine that takes them is on another stream.
            cuda::wait();
            Ok(Self { version: weights.version, decoder, stop_criteria: StopCriteria::of(weights)? })
        })
    }
}

impl ReadyWeights for TorchWeights {
    fn version(&self) -> PolicyVersion {
        self.version
    }

    fn into_engine(self: Box<Self>) -> Result<Box<dyn Engine>, PolicyError> {
        Ok(Box::new(TorchEngine::of(*self, EngineSettings::default())?))
    }
}

fn read_decoder(weights: &LoadedVersion, device: Device) -> Result<Decoder, PolicyError> {
    let config = Config::read(weights.file(CONFIG_FILE)?)?;
    let (layout, bytes) = (Layout::of(&config), weights.file(MODEL_FILE)?);
    let flat = read_tensors_to(MODEL_FILE, bytes, "", &layout, (kind(&config), device))?;
    Ok(Decoder::for_sampling(config, &flat, device))
}
