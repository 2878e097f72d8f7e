//! Stands in for `torch.rs` in a build without libtorch: decoders are left to other workers.

use millrace_policy::{Engine, LoadedVersion, PolicyError, Trainer};

/// No arguments.
#[derive(Debug, Clone, clap::Args)]
pub struct TorchArgs {}

impl TorchArgs {
    /// There is nothing to set.
    pub const fn apply(&self, _nats: &str) {}
}

/// An error: this build has no engine for decoders.
pub(crate) fn engine(_weights: &LoadedVersion) -> Result<Box<dyn Engine>, PolicyError> {
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
