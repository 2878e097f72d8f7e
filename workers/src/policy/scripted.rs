//! A policy without a model, for tests of queue and coordinator. Its turns follow from the
//! request's seed. It answers a token with its successor, more often with each version, so that the
//! counter environment's curve rises. Its weights are a hash over all batches so far, so a step
//! that was left out or made twice shows in every later version.

use std::collections::BTreeMap;
use std::time::Instant;

use bytes::Bytes;
use millrace_policy::gang::RankAssignment;
use millrace_policy::random::Stream;
use millrace_policy::{
    CONFIG_FILE, Engine, EngineRequest, Finished, LoadedVersion, PolicyError, ReadyWeights, Ticket,
    TrainStep, Trained, Trainer, own_weights,
};
use millrace_schemas::blob::Sha;
use millrace_schemas::generate::{Finish, GenerateDone, GenerateTask};
use millrace_schemas::submit::ModelSpec;
use millrace_schemas::{BlobRef, PolicyVersion};

/// `model_type` of its `config.json`.
pub const SCRIPTED_MODEL_TYPE: &str = "millrace_scripted";
/// The file of the weights: 32 bytes.
pub const WEIGHTS_FILE: &str = "model.scripted";
/// Tokens that the policy knows, unless a request allows fewer.
const VOCABULARY: u32 = 128;

/// What a version of it is to an engine: its number.
#[derive(Debug, Clone, Copy)]
pub struct ScriptedWeights(PolicyVersion);

impl ScriptedWeights {
    /// Of a version's files.
    ///
    /// # Errors
    /// They are not scripted weights.
    pub fn read(weights: &LoadedVersion) -> Result<Self, PolicyError> {
        let bytes = weights.file(WEIGHTS_FILE)?.len();
        if bytes != 32 {
            return Err(PolicyError::Impossible(format!("{WEIGHTS_FILE} has bytes={bytes}, not 32")));
        }
        Ok(Self(weights.version))
    }

    /// An engine that samples with them.
    #[must_use]
    pub const fn engine(self) -> ScriptedEngine {
        ScriptedEngine { version: self.0, requests: Vec::new() }
    }
}

impl ReadyWeights for ScriptedWeights {
    fn version(&self) -> PolicyVersion {
        self.0
    }

    fn into_engine(self: Box<Self>) -> Result<Box<dyn Engine>, PolicyError> {
        Ok(Box::new(self.engine()))
    }
}

/// Samples by script.
#[derive(Debug)]
pub struct ScriptedEngine {
    version: PolicyVersion,
    requests: Vec<(Ticket, Request)>,
}

/// A request in flight.
#[derive(Debug)]
struct Request {
    task: GenerateTask,
    stream: Stream,
    last: u32,
    done: GenerateDone,
}

impl Engine for ScriptedEngine {
    fn swap(&mut self, weights: Box<dyn ReadyWeights>) -> Result<(), PolicyError> {
        let ScriptedWeights(version) = *own_weights(weights)?;
        self.version = version;
        Ok(())
    }

    fn admit(&mut self, request: EngineRequest) {
        let EngineRequest { ticket, mut task, .. } = request;
        let done = task.turn_so_far();
        let last = done.tokens.last().or(task.context.last()).copied().unwrap_or(0);
        let stream = Stream::new(task.seed.wrapping_add(done.tokens.len() as u64));
        self.requests.push((ticket, Request { stream, task, last, done }));
    }

    fn abandon(&mut self, ticket: Ticket) -> Option<GenerateDone> {
        let request = self.requests.extract_if(.., |(t, _)| *t == ticket).next();
        request.map(|(_, request)| GenerateDone { finish: Finish::Partial, ..request.done })
    }

    fn step(&mut self) -> Result<Vec<Finished>, PolicyError> {
        let version = self.version;
        let ended = self.requests.extract_if(.., |(_, request)| request.sample(version));
        Ok(ended.map(|(ticket, request)| Finished { ticket, result: Ok(request.done) }).collect())
    }
}

impl Request {
    /// Adds a token; returns whether it was the last.
    fn sample(&mut self, version: PolicyVersion) -> bool {
        let vocabulary = self.task.sampling.sample_below.unwrap_or(VOCABULARY).clamp(2, VOCABULARY);
        let right = share_right(version);
        let answer = (self.last + 1) % vocabulary;
        let (token, probability) = if self.stream.unit() < right {
            (answer, right)
        } else {
            let other = 1 + self.stream.below(u64::from(vocabulary) - 1) as u32;
            ((answer + other) % vocabulary, (1.0 - right) / f64::from(vocabulary - 1))
        };
        self.last = token;
        self.done.push(token, probability.ln() as f32, version);
        self.done.finish = Finish::Length;
        if self.task.sampling.stop_tokens.contains(&token) {
            self.done.finish = Finish::Stop;
            return true;
        }
        self.done.tokens.len() >= self.task.max_new_tokens as usize
    }
}

/// Share of tokens that are answered with their successor: 0.2 at version 0, towards 1.
fn share_right(version: PolicyVersion) -> f64 {
    let version = version.0 as f64;
    (1.0 + version) / (5.0 + version)
}

/// Trains by hashing.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScriptedTrainer;

impl ScriptedTrainer {
    fn version(weights: Sha, metrics: BTreeMap<String, f64>) -> Trained {
        let config = format!("{{\"model_type\": \"{SCRIPTED_MODEL_TYPE}\"}}\n");
        let files = [
            (CONFIG_FILE.to_owned(), Bytes::from(config)),
            (WEIGHTS_FILE.to_owned(), Bytes::copy_from_slice(&weights.0)),
        ];
        Trained { files: files.into(), metrics }
    }
}

impl Trainer for ScriptedTrainer {
    fn initialise(&mut self, _model: &ModelSpec, seed: u64) -> Result<Trained, PolicyError> {
        Ok(Self::version(Sha::of(&seed.to_le_bytes()), BTreeMap::new()))
    }

    fn step(&mut self, base: &LoadedVersion, step: &TrainStep<'_>) -> Result<Trained, PolicyError> {
        let weights = Sha::of_parts([&step.file(base, WEIGHTS_FILE)?[..], &step.blob.sha256.0]);
        if let Some(assignment) = step.assignment {
            rendezvous(assignment, base, step)?;
        }
        let rollouts = step.batch.groups.iter().flat_map(|group| &group.rollouts);
        if let Some(malformed) = rollouts.clone().find(|rollout| rollout.sequences().is_none()) {
            let reason = format!("rollout {} has malformed forks={:?}", malformed.id, malformed.forks);
            return Err(PolicyError::Impossible(reason));
        }
        let count = rollouts.clone().count().max(1) as f64;
        let reward = rollouts.map(|rollout| rollout.reward).sum::<f64>() / count;
        let mut trained = Self::version(weights, [("loss".to_owned(), -reward)].into());
        if step.assignment.is_some_and(|assignment| assignment.rank > 0) {
            // As with real weights, the first member writes what all of them hold.
            trained.files.clear();
        }
        Ok(trained)
    }
}

/// The key that a rank of a formation sets when it is at the step on `base` with this batch.
#[must_use]
pub fn rendezvous_key(gang: &str, base: PolicyVersion, batch: BlobRef, rank: u32) -> String {
    format!("{gang}/{base}-{}-{rank}", batch.sha256.short())
}

/// Waits until all members are at this step.
fn rendezvous(
    assignment: &RankAssignment,
    base: &LoadedVersion,
    step: &TrainStep<'_>,
) -> Result<(), PolicyError> {
    let key = |rank| rendezvous_key(&assignment.gang, base.version, step.blob, rank);
    assignment.rendezvous.set(&key(assignment.rank), b"here")?;
    let deadline = Instant::now() + assignment.timeout;
    for rank in (0..assignment.world).filter(|rank| *rank != assignment.rank) {
        assignment.rendezvous.wait(&key(rank), deadline, &assignment.cancel)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
