//! Decoders on libtorch: the engine and trainer of `millrace-torch`, and their arguments. A build
//! without the feature `torch` has `without_torch.rs` in place of this file.

use millrace_torch::gang::{Listen, group};

use millrace_policy::{Engine, LoadedVersion, PolicyError, Trainer};

// For the load test, which measures them.
pub use millrace_torch::{EngineSettings, TorchEngine, TorchTrainer, math, set_threads};

/// Arguments of a worker that has libtorch.
#[derive(Debug, Clone, clap::Args)]
pub struct TorchArgs {
    /// Threads of libtorch. They wait for one another by spinning: over all workers of the machine,
    /// have no more than free processors
    #[arg(long, env = "MILLRACE_TORCH_THREADS", default_value_t = 1, value_parser = clap::value_parser!(i32).range(1..))]
    torch_threads: i32,
    /// The interface or address of this machine at which the other members of a gang reach this
    /// worker. Default: the address that reaches the queue
    #[arg(long, env = "MILLRACE_GANG_INTERFACE")]
    gang_interface: Option<String>,
}

impl TorchArgs {
    /// Sets what this process uses libtorch with, before the first model. `nats` is the address of
    /// the queue.
    pub fn apply(&self, nats: &str) {
        set_threads(self.torch_threads);
        if let Some(at) = self.gang_interface.as_deref().map(Listen::at).or_else(|| Listen::towards(nats)) {
            group::listen(at);
        }
    }
}

/// An engine for a decoder's weights, with these loaded.
pub(crate) fn engine(weights: &LoadedVersion) -> Result<Box<dyn Engine>, PolicyError> {
    Ok(Box::new(TorchEngine::new(weights, EngineSettings::default())?))
}

/// A trainer of decoders.
#[expect(clippy::unnecessary_wraps, reason = "a build without torch has an error to give here")]
pub(crate) fn trainer() -> Result<Box<dyn Trainer>, PolicyError> {
    Ok(Box::new(TorchTrainer::new()))
}
