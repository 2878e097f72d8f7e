//! Stands in for `torch.rs` in a build without libtorch: decoders are left to other workers.

use millrace_policy::{LoadedVersion, PolicyError, ReadyWeights, Trainer};

/// No arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct TorchArgs {}

impl TorchArgs {
    /// There is nothing to set.
    ///
    /// # Errors
    /// Never.
    pub const fn apply(&self, _nats: &str) -> Result<(), String> {
        Ok(())
    }
}

/// An error: this build has no engine for decoders.
pub(crate) fn weights(_weights: &LoadedVersion) -> Result<Box<dyn ReadyWeights>, PolicyError> {
    Err(lacks_torch())
}

/// An error: this build has no trainer of decoders.
pub(crate) fn trainer() -> Result<Box<dyn Trainer>, PolicyError> {
    Err(lacks_torch())
}

fn lacks_torch() -> PolicyError {
    let reason = "this build of millrace-worker lacks torch; build it with `--features torch`";
    PolicyError::Unsupported(reason.to_owned())
}
