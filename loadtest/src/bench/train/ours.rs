//! Our side.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use millrace_policy::decoder::Config;
use millrace_policy::{
    CONFIG_FILE, LoadedVersion, MODEL_FILE, NoPast, Past, PolicyError, TrainStep, Trained, Trainer,
};
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, Loss, Precision};
use millrace_schemas::{BlobRef, PolicyVersion};
use millrace_workers::torch::{TorchTrainer, set_threads, trace};

use super::super::cpu;
use super::super::model::{read, version};
use super::rollouts::Data;
use super::{Args, StepFigures};

/// AdamW's, on both sides. Small, since the rewards are drawn.
pub(super) const LEARNING_RATE: f64 = 1e-5;
/// On both sides.
pub(super) const MAX_GRAD_NORM: f64 = 1.0;

/// A trainer and the version that it made last.
pub(super) struct Ours {
    trainer: TorchTrainer,
    /// Without its weights, as a worker has it: the trainer holds them.
    base: LoadedVersion,
    algorithm: Algorithm,
    folder: Folder,
    /// What layers are computed in.
    pub(super) precision: Precision,
}

/// The model's directory: the weights of version 0 are had from it.
#[derive(Debug)]
struct Folder(PathBuf);

impl Past for Folder {
    fn manifest(&self, version: PolicyVersion, sha: Sha) -> Result<Manifest, PolicyError> {
        NoPast.manifest(version, sha)
    }

    fn blob(&self, _blob: &BlobRef) -> Result<Bytes, PolicyError> {
        read(&self.0, MODEL_FILE).map_err(|error| PolicyError::Impossible(error.to_string()))
    }
}

impl Ours {
    pub(super) fn new(args: &Args, data: &Data) -> anyhow::Result<Self> {
        anyhow::ensure!(data.tokens() > 0, "no rollout was asked for");
        set_threads(args.setup.threads);
        let algorithm = Algorithm {
            loss: Loss::PolicyGradient,
            entropy: 0.0,
            epochs: 1,
            learning_rate: LEARNING_RATE,
            max_grad_norm: MAX_GRAD_NORM,
            tokens_per_microbatch: args.microbatch,
            ..Algorithm::default()
        };
        let folder = Folder(args.setup.model.clone());
        let config = config(args)?;
        let precision = Config::read(&config)?.precision;
        let files = [(CONFIG_FILE, config), (MODEL_FILE, args.setup.read(MODEL_FILE)?)];
        let files = files.into_iter().map(|(name, content)| (name.to_owned(), content)).collect();
        Ok(Self { trainer: TorchTrainer::new(), base: kept(0, files, None)?, algorithm, folder, precision })
    }

    /// One more step, traced.
    pub(super) fn trace(&mut self, data: &Data, path: &Path) -> anyhow::Result<()> {
        trace(path, || self.step(data, false)).map_err(anyhow::Error::msg)??;
        println!("a trace of one step is in {}", path.display());
        Ok(())
    }

    /// A step, timed without reading and writing files.
    pub(super) fn step(&mut self, data: &Data, recompute: bool) -> anyhow::Result<StepFigures> {
        self.algorithm.recompute = recompute;
        let batch = data.batch(self.base.version, self.base.sha)?;
        let blob = BlobRef::of(&self.base.version.0.to_le_bytes());
        let step = TrainStep {
            batch: &batch,
            blob,
            algorithm: &self.algorithm,
            reference: None,
            assignment: None,
            checkpoint: false,
            past: &self.folder,
        };
        let (busy, whole) = (cpu::used(std::process::id())?, Instant::now());
        let Trained { files, metrics } = self.trainer.step(&self.base, &step)?;
        let (busy, whole) = (cpu::used(std::process::id())?.saturating_sub(busy), whole.elapsed());
        let seconds = self.trainer.computed_for();
        // Files are read and written on one thread.
        let around = whole.saturating_sub(seconds);
        self.base = kept(self.base.version.0 + 1, files, Some((self.base.sha, blob)))?;
        Ok(StepFigures {
            seconds: seconds.as_secs_f64(),
            busy_seconds: busy.saturating_sub(around).as_secs_f64(),
            loss: metrics["loss"],
            grad_norm: metrics["grad_norm"],
            peak_bytes: peak_bytes()?,
        })
    }
}

/// The model's config, with the numbers that were asked for.
fn config(args: &Args) -> anyhow::Result<Bytes> {
    let config = args.setup.read(CONFIG_FILE)?;
    let Some(precision) = args.precision else { return Ok(config) };
    let mut fields: serde_json::Value =
        serde_json::from_slice(&config).context("the model's config.json is no JSON")?;
    fields["dtype"] = precision.dtype().into();
    Ok(serde_json::to_vec(&fields)?.into())
}

/// A version that was made, without its weights.
fn kept(
    number: u64,
    files: BTreeMap<String, Bytes>,
    made: Option<(Sha, BlobRef)>,
) -> anyhow::Result<LoadedVersion> {
    let mut version = version(number, files, made)?;
    version.files.retain(|name, _| name == CONFIG_FILE);
    Ok(version)
}

/// Most memory that this process has had.
fn peak_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes =
        line.and_then(|line| line.split_whitespace().next()).context("no VmHWM in /proc/self/status")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}
