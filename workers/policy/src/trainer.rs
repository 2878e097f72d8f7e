//! What is asked of a trainer, whichever library computes it: optimiser steps. A trainer has one
//! thread, which owns all of a model's state.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_schemas::blob::Sha;
use millrace_schemas::envelope::decode;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, ModelSpec};
use millrace_schemas::train_shard::{Batch, FileRef};
use millrace_schemas::{BlobRef, PolicyVersion};

use crate::gang::RankAssignment;
use crate::share::Place;
use crate::{LoadedVersion, PolicyError};

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

    /// Releases the device's memory, because an engine needs it: weights and optimiser state go to
    /// the host's. The next step brings them back.
    ///
    /// # Errors
    /// They could not be moved. The caller drops the trainer with its state.
    fn leave_device(&mut self) -> Result<(), PolicyError> {
        Ok(())
    }
}

/// The arguments of an optimiser step besides the base version.
#[derive(Debug, Clone, Copy)]
pub struct TrainStep<'a> {
    /// With the turns of this rank's [`Share`](crate::Share). It may only name the others.
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
    /// This member's place in the gang.
    #[must_use]
    pub fn place(&self) -> Place {
        self.assignment
            .map_or(Place::ALONE, |assignment| Place { rank: assignment.rank, world: assignment.world })
    }

    /// The file called `name` of `version`, from memory or from the past.
    ///
    /// # Errors
    /// The version has no such file, or it cannot be fetched.
    pub fn file(&self, version: &LoadedVersion, name: &str) -> Result<Bytes, PolicyError> {
        if let Some(content) = version.files.get(name) {
            return Ok(content.clone());
        }
        let Some(file) = version.manifest.files.iter().find(|file| file.name == name) else {
            return Err(PolicyError::Impossible(format!("version={} has no file {name}", version.version)));
        };
        self.past.file(file)
    }
}

/// Committed versions and stored batches. Calls come from the trainer's thread and may block.
pub trait Past: std::fmt::Debug {
    /// The manifest of `version`, whose hash is `sha`.
    ///
    /// # Errors
    /// It cannot be fetched.
    fn manifest(&self, version: PolicyVersion, sha: Sha) -> Result<Manifest, PolicyError>;

    /// A file of a version. A past whose files are all whole need not say more than [`Self::blob`].
    ///
    /// # Errors
    /// It cannot be fetched.
    fn file(&self, file: &FileRef) -> Result<Bytes, PolicyError> {
        self.blob(&file.blob)
    }

    /// The content that `blob` names.
    ///
    /// # Errors
    /// It cannot be fetched.
    fn blob(&self, blob: &BlobRef) -> Result<Bytes, PolicyError>;

    /// The batch that `blob` names, with the turns of the [`Share`](crate::Share) of the rank at `place`. It may
    /// only name the others.
    ///
    /// # Errors
    /// It cannot be fetched, or is no batch.
    fn batch(&self, blob: &BlobRef, algorithm: &Algorithm, place: Place) -> Result<Batch, PolicyError> {
        let _ = (algorithm, place);
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
    /// The files by name: `config.json`, `model.safetensors`, … Those that [`is_for_training`](crate::is_for_training)
    /// names are left out where a version is only sampled from.
    pub files: BTreeMap<String, Bytes>,
    /// Means over the batch by name, each finite.
    pub metrics: BTreeMap<String, f64>,
}
