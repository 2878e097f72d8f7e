//! Engine and trainer of a [`decoder`](super::decoder) on libtorch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use tch::Device;

use super::decoder::{ConfigError, FilesError};
use super::{Engine, PolicyError, Trainer};
use crate::model::directory::Broken;
use crate::model::versions::LoadedVersion;

mod engine;
mod memory;
mod sampling;
mod trainer;

pub use engine::{EngineSettings, TorchEngine};
pub use sampling::{Draw, Drawn, draw, uniform};
pub use trainer::TorchTrainer;

static THREADS: OnceLock<i32> = OnceLock::new();

/// Sets how many threads libtorch may use in this process, before the first model. The default is
/// one: workers of several stages share a machine, and libtorch's threads wait for one another by
/// spinning.
pub fn set_threads(threads: i32) {
    let _ = THREADS.set(threads.max(1));
}

/// An engine for a decoder's weights, with these loaded.
pub(super) fn decoder_engine(weights: &LoadedVersion) -> Result<Box<dyn Engine>, PolicyError> {
    Ok(Box::new(TorchEngine::new(weights, EngineSettings::default())?))
}

/// A trainer of decoders.
#[expect(clippy::unnecessary_wraps, reason = "a build without torch has an error to give here")]
pub(super) fn decoder_trainer() -> Result<Box<dyn Trainer>, PolicyError> {
    Ok(Box::new(TorchTrainer::new()))
}

/// Prepares the calling thread to compute, and returns the device: a GPU where libtorch sees one.
fn enter() -> Device {
    tch::set_num_threads(*THREADS.get_or_init(|| 1));
    memory::keep();
    Device::cuda_if_available()
}

/// Runs `compute`, whose tensor operations panic where libtorch throws, and makes an error of it.
fn guarded<T>(compute: impl FnOnce() -> Result<T, PolicyError>) -> Result<T, PolicyError> {
    catch_unwind(AssertUnwindSafe(compute)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        // libtorch appends its stack to the message.
        let text: Vec<&str> = text.lines().take(3).collect();
        Err(PolicyError::Temporary(format!("libtorch failed: {}", text.join(" "))))
    })
}

impl From<ConfigError> for PolicyError {
    fn from(error: ConfigError) -> Self {
        Self::Impossible(error.to_string())
    }
}

impl From<Broken> for PolicyError {
    fn from(broken: Broken) -> Self {
        let reason = broken.to_string();
        // Another worker may be on the machine that has it.
        if broken.absent { Self::Unsupported(reason) } else { Self::Impossible(reason) }
    }
}

impl From<FilesError> for PolicyError {
    fn from(error: FilesError) -> Self {
        Self::Impossible(error.to_string())
    }
}

/// How many tokens both begin with.
fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
