//! The interfaces through which `generate` and `train_shard` use a model, whichever library
//! computes it. An engine and a trainer each have one thread, which owns all of a model's state.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::decode;
use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, ModelSpec};
use millrace_schemas::train_shard::Batch;
use millrace_schemas::{BlobRef, PolicyVersion, RolloutId};

use crate::gang::{GangError, RankAssignment};
use crate::model::versions::LoadedVersion;
use decoder::Architecture;
#[cfg(feature = "torch")]
use torch::{decoder_engine, decoder_trainer};

pub mod scripted;
pub mod probe;
pub(crate) mod stop_criteria;
pub mod openai;
pub mod decoder;
#[cfg(feature = "torch")]
pub mod torch;

/// Names a request while an engine has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// One turn to sample.
#[derive(Debug, Clone)]
pub struct EngineRequest {
    /// Unique within the engine.
    pub ticket: Ticket,
    /// The rollout: its next turn has this turn's context as a prefix.
    pub rollout: RolloutId,
    /// What to sample. The engine's version is at least `min_version`, the context not empty.
    pub task: GenerateTask,
}

/// A request that an engine is done with.
#[derive(Debug)]
pub struct Finished {
    /// The request.
    pub ticket: Ticket,
    /// The turn, or the error of this request alone.
    pub result: Result<GenerateDone, PolicyError>,
}

/// Why a request or a step failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A retry may succeed: memory was short, a device was lost.
    #[error("{0}")]
    Temporary(String),
    /// No worker can compute it: a token outside the vocabulary, a context too long, a loss that is
    /// not finite.
    #[error("{0}")]
    Impossible(String),
    /// This build cannot compute it; another worker of the pool may.
    #[error("{0}")]
    Unsupported(String),
    /// The gang lost a member, or this member must leave. The step left no trace. The next gang
    /// redoes it.
    #[error("{0}")]
    Void(String),
}

impl From<GangError> for PolicyError {
    fn from(error: GangError) -> Self {
        Self::Void(error.to_string())
    }
}

/// Samples turns with the weights of one run: continuous batching. All calls come from one thread,
/// so an engine need not be `Send`.
pub trait Engine {
    /// Loads these weights. Requests in flight keep their tokens and continue under the new
    /// weights, so that a turn may have several segments. The KV cache of the old weights is
    /// dropped.
    ///
    /// # Errors
    /// The files are not such a model. The caller drops the engine and retries its requests.
    fn load(&mut self, weights: &LoadedVersion) -> Result<(), PolicyError>;

    /// Adds a request to the batch.
    fn admit(&mut self, request: EngineRequest);

    /// Drops a request without a result. Unknown tickets are ignored.
    fn abandon(&mut self, ticket: Ticket);

    /// Samples about one token for each request in flight, and returns the requests that ended with
    /// it. Never waits. The caller repeats it while there are requests.
    ///
    /// # Errors
    /// The engine is broken. The caller drops it and retries its requests.
    fn step(&mut self) -> Result<Vec<Finished>, PolicyError>;
}

/// Computes the steps of a run. All calls come from one thread. A trainer may cache its state
/// between steps, but a step from the files alone must give the same result.
pub trait Trainer {
    /// Makes version 0: its files, `config.json` among them.
    ///
    /// # Errors
    /// The model cannot be made.
    fn initialise(&mut self, model: &ModelSpec, seed: u64) -> Result<Trained, PolicyError>;

    /// One optimiser step on `batch` from `base`. Files of `base` that are not in memory come from
    /// [`TrainStep::past`] when they are needed. The same arguments give the same files, byte for
    /// byte, on the same device and build and with the same number of members.
    ///
    /// # Errors
    /// The files are not such a model, the step has no finite result, or a member of the gang was
    /// lost.
    fn step(&mut self, base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Trained, PolicyError>;
}

/// The arguments of an optimiser step besides the base version.
#[derive(Debug, Clone, Copy)]
pub struct TrainStep<'a> {
    /// Complete: with the turns that a stored batch only names.
    pub batch: &'a Batch,
    /// The stored batch, by its hash.
    pub blob: BlobRef,
    /// As the run file has it.
    pub algorithm: &'a Algorithm,
    /// The version of the KL penalty, where the algorithm has one.
    pub reference: Option<&'a LoadedVersion>,
    /// This member of the gang; `None` for a gang of one.
    pub assignment: Option<&'a RankAssignment>,
    /// Whether the files include the optimiser's state.
    pub checkpoint: bool,
    /// Source of files that are not in memory.
    pub past: &'a dyn Past,
}

impl TrainStep<'_> {
    /// The file called `name` of `version`, from memory or from the past.
    ///
    /// # Errors
    /// The version has no such file, or it cannot be fetched.
    pub fn file(&self, version: &LoadedVersion, name: &str) -> Result<Bytes, PolicyError> {
        if let Some(content) = version.files.get(name) {
            return Ok(content.clone());
        }
        let Some(blob) = version.manifest.file(name) else {
            return Err(PolicyError::Impossible(format!("version={} has no file {name}", version.version)));
        };
        self.past.blob(blob)
    }
}

/// Committed versions and stored batches. Calls come from the trainer's thread and may block.
pub trait Past: std::fmt::Debug {
    /// The manifest of `version`, whose hash is `sha`.
    ///
    /// # Errors
    /// It cannot be fetched.
    fn manifest(&self, version: PolicyVersion, sha: Sha) -> Result<Manifest, PolicyError>;

    /// The content that `blob` names.
    ///
    /// # Errors
    /// It cannot be fetched.
    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError>;

    /// The batch that `blob` names, with all its turns. A stored batch may only name them.
    ///
    /// # Errors
    /// It cannot be fetched, or is no batch.
    fn batch(&self, blob: &BlobRef) -> Result<Batch, PolicyError> {
        let batch: Batch = decode("batch", &self.blob(blob)?)
            .map_err(|error| PolicyError::Impossible(format!("failed to read a batch: {error}")))?;
        if batch.is_resolved() {
            return Ok(batch);
        }
        Err(PolicyError::Impossible("a batch names turns of the log, which is not at hand".to_owned()))
    }
}

/// An empty past, for a version all of whose files are in memory.
#[derive(Debug, Clone, Copy)]
pub struct NoPast;

impl Past for NoPast {
    fn manifest(&self, version: PolicyVersion, _sha: Sha) -> Result<Manifest, PolicyError> {
        Err(PolicyError::Impossible(format!("the manifest of version={version} is not at hand")))
    }

    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError> {
        Err(PolicyError::Impossible(format!("the blob of sha256={} is not at hand", blob.sha256)))
    }
}

/// A version's content before it is committed.
#[derive(Debug, Clone, PartialEq)]
pub struct Trained {
    /// The files by name: `config.json`, `model.safetensors`, … Those that [`is_for_training`]
    /// names are left out where a version is only sampled from.
    pub files: BTreeMap<String, Bytes>,
    /// Means over the batch by name, each finite.
    pub metrics: BTreeMap<String, f64>,
}

/// `model_type` of the `config.json` of [`scripted`].
pub const SCRIPTED_MODEL_TYPE: &str = "millrace_scripted";
/// The file of a version that tells the kind of the others.
pub const CONFIG_FILE: &str = "config.json";
/// The weights of a version, and of a model directory that is not sharded.
pub const MODEL_FILE: &str = "model.safetensors";
/// The start of the names of the files of the optimiser's state.
pub const OPTIMIZER_PREFIX: &str = "optimizer";
/// The critic of a version whose algorithm has one.
pub const CRITIC_FILE: &str = "critic.safetensors";

/// Whether only training needs a file of this name. Such a file is left out where a version is only
/// sampled from.
#[must_use]
pub fn is_for_training(name: &str) -> bool {
    name.starts_with(OPTIMIZER_PREFIX) || name == CRITIC_FILE
}

/// An engine with these weights loaded.
///
/// # Errors
/// The files are not of a kind that this build knows.
pub fn engine_for(weights: &LoadedVersion) -> Result<Box<dyn Engine>, PolicyError> {
    match weights.model_type()?.as_str() {
        SCRIPTED_MODEL_TYPE => Ok(Box::new(scripted::ScriptedEngine::new(weights)?)),
        other if Architecture::of(other).is_some() => decoder_engine(weights),
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
        other if Architecture::of(other).is_some() => decoder_trainer(),
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

#[cfg(not(feature = "torch"))]
fn decoder_engine(_weights: &LoadedVersion) -> Result<Box<dyn Engine>, PolicyError> {
    Err(lacks_torch())
}

#[cfg(not(feature = "torch"))]
fn decoder_trainer() -> Result<Box<dyn Trainer>, PolicyError> {
    Err(lacks_torch())
}

#[cfg(not(feature = "torch"))]
fn lacks_torch() -> PolicyError {
    let reason = "this build of millrace-worker lacks torch; build it with `--features torch`";
    PolicyError::Unsupported(reason.to_owned())
}
