//! Engines and trainers by the kind of a model: `scripted` has no model, `openai` asks a server, and
//! decoders are computed by libtorch where this build has it.

use millrace_policy::decoder::Architecture;
use millrace_policy::{LoadedVersion, PolicyError, ReadyWeights, Trainer};
use millrace_schemas::submit::ModelSpec;

use crate::runtime::{Failure, Retry};
use crate::torch;
use scripted::SCRIPTED_MODEL_TYPE;

pub mod scripted;
pub mod openai;

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Self {
        match error {
            PolicyError::Temporary(reason) | PolicyError::Void(reason) => Self::Retry(Retry::Soon, reason),
            PolicyError::Unsupported(reason) => Self::Retry(Retry::Elsewhere, reason),
            PolicyError::Impossible(reason) => Self::Impossible(reason),
        }
    }
}

/// Reads and verifies weights, of which an engine is made or to which one swaps.
///
/// # Errors
/// The files are not of a kind that this build knows, or not sound.
pub fn read_weights(weights: &LoadedVersion) -> Result<Box<dyn ReadyWeights>, PolicyError> {
    match weights.model_type()?.as_str() {
        SCRIPTED_MODEL_TYPE => Ok(Box::new(scripted::ScriptedWeights::read(weights)?)),
        other if Architecture::of(other).is_some() => torch::weights(weights),
        other => Err(unknown(other)),
    }
}

/// A trainer for a model of this `model_type`.
///
/// # Errors
/// This build does not know it.
pub fn trainer_for(model_type: &str) -> Result<Box<dyn Trainer>, PolicyError> {
    match model_type {
        SCRIPTED_MODEL_TYPE => Ok(Box::new(scripted::ScriptedTrainer)),
        other if Architecture::of(other).is_some() => torch::trainer(),
        other => Err(unknown(other)),
    }
}

fn unknown(model_type: &str) -> PolicyError {
    let known = Architecture::known();
    PolicyError::Impossible(format!("model_type value={model_type:?} is not known; known are {known}"))
}

/// The `model_type` of a trainer that makes version 0 of a model of the run file: all decoders have
/// the same.
#[must_use]
pub const fn model_type(model: &ModelSpec) -> &'static str {
    match model {
        ModelSpec::Decoder { .. } | ModelSpec::HuggingFace { .. } => Architecture::Llama.model_type(),
        ModelSpec::Scripted => SCRIPTED_MODEL_TYPE,
    }
}
