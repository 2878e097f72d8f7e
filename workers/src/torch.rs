//! Decoders on libtorch: the engine and trainer of `millrace-torch`, and their arguments. A build
//! without the feature `torch` has `without_torch.rs` in place of this file.

use millrace_torch::gang::{Listen, group};

use millrace_policy::{LoadedVersion, PolicyError, ReadyWeights, Trainer};

// For the load test, which measures them.
pub use millrace_torch::{EngineSettings, TorchEngine, TorchTrainer, TorchWeights, math, set_threads, trace};
use millrace_torch::{allow_tf32, set_cache_share, set_device, set_gpu_kernels};

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
    /// Which GPU, by its number from 0, where libtorch sees some: start one worker for each
    #[arg(long, env = "MILLRACE_DEVICE", default_value_t = 0)]
    device: usize,
    /// Share of the GPU's free memory that an engine's KV cache may grow to, above 0 to 1. The next version of the weights is
    /// subtracted first. A trainer on the same GPU needs the rest
    #[arg(long, env = "MILLRACE_KV_CACHE_SHARE", default_value_t = 0.5, value_parser = share)]
    kv_cache_share: f64,
    /// Whether a GPU computes with kernels of our own, where they pass their checks; if not, with libtorch's operators
    #[arg(long, env = "MILLRACE_GPU_KERNELS", default_value_t = true, action = clap::ArgAction::Set)]
    gpu_kernels: bool,
    /// Whether a GPU multiplies f32 as TF32: faster, with 10 bits of mantissa. What computes in bf16 is the same either way
    #[arg(long, env = "MILLRACE_TF32", default_value_t = false, action = clap::ArgAction::Set)]
    tf32: bool,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse::<f64>().map_err(|error| error.to_string())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err(format!("share={share} must be above 0 to 1")) }
}

impl TorchArgs {
    /// Sets what this process uses libtorch with, before the first model. `nats` is the address of
    /// the queue.
    ///
    /// # Errors
    /// There is no such device.
    pub fn apply(&self, nats: &str) -> Result<(), String> {
        set_threads(self.torch_threads);
        set_cache_share(self.kv_cache_share);
        set_gpu_kernels(self.gpu_kernels);
        allow_tf32(self.tf32);
        set_device(self.device).map_err(|error| format!("--device: {error}"))?;
        match &self.gang_interface {
            Some(word) => group::listen(Listen::at(word)),
            None => group::listen_towards(nats),
        }
        Ok(())
    }
}

/// A decoder's weights, for an engine.
pub(crate) fn weights(weights: &LoadedVersion) -> Result<Box<dyn ReadyWeights>, PolicyError> {
    Ok(Box::new(TorchWeights::read(weights)?))
}

/// A trainer of decoders.
#[expect(clippy::unnecessary_wraps, reason = "a build without torch has an error to give here")]
pub(crate) fn trainer() -> Result<Box<dyn Trainer>, PolicyError> {
    Ok(Box::new(TorchTrainer::new()))
}
