//! Our side.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::submit::{Algorithm, Loss};
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, PolicyVersion};
use millrace_workers::policy::torch::{TorchTrainer, set_threads};
use millrace_workers::policy::{NoPast, TrainStep, Trainer};
use millrace_workers::weights::LoadedVersion;

use super::super::cpu;
use super::rollouts::Data;
use super::{Args, StepFigures};

/// A trainer and the version that it made last.
pub(super) struct Ours {
    trainer: TorchTrainer,
    base: LoadedVersion,
    algorithm: Algorithm,
}

/// A version of these files, as if it had been committed.
fn version(
    number: u64,
    files: BTreeMap<String, Bytes>,
    made: Option<(Sha, BlobRef)>,
) -> anyhow::Result<LoadedVersion> {
    let refs = files.iter().map(|(name, bytes)| FileRef { name: name.clone(), blob: BlobRef::of(bytes) });
    let manifest = Manifest {
        run: "bench".parse()?,
        version: PolicyVersion(number),
        parent: made.map(|(parent, _)| parent),
        batch: made.map(|(_, batch)| batch),
        config: Sha::of(b"bench"),
        files: refs.collect(),
        metrics: BTreeMap::new(),
    };
    let sha = Sha::of(&manifest.to_json());
    Ok(LoadedVersion { version: PolicyVersion(number), manifest, sha, files })
}

impl Ours {
    pub(super) fn new(args: &Args, data: &Data) -> anyhow::Result<Self> {
        set_threads(args.threads);
        let mut files = BTreeMap::new();
        for name in ["config.json", "model.safetensors"] {
            let content = std::fs::read(args.model.join(name));
            let content = content.with_context(|| format!("failed to read the model's {name}"))?;
            files.insert(name.to_owned(), Bytes::from(content));
        }
        let algorithm = Algorithm {
            loss: Loss::PolicyGradient,
            entropy: 0.0,
            epochs: 1,
            learning_rate: LEARNING_RATE,
            max_grad_norm: MAX_GRAD_NORM,
            tokens_per_microbatch: args.microbatch,
            recompute: args.recompute,
            ..Algorithm::default()
        };
        anyhow::ensure!(data.tokens() > 0, "no rollout was asked for");
        Ok(Self { trainer: TorchTrainer::new(), base: version(0, files, None)?, algorithm })
    }

    /// A step, timed without reading and writing files.
    pub(super) fn step(&mut self, data: &Data) -> anyhow::Result<StepFigures> {
        let batch = data.batch(self.base.version, self.base.sha)?;
        let blob = BlobRef::of(&self.base.version.0.to_le_bytes());
        let step = TrainStep {
            batch: &batch,
            blob,
            algorithm: &self.algorithm,
            reference: None,
            seat: None,
            checkpoint: false,
            past: &NoPast,
        };
        let (busy, whole) = (cpu::used(std::process::id())?, Instant::now());
        let trained = self.trainer.step(&self.base, &step)?;
        let (busy, whole) = (cpu::used(std::process::id())? - busy, whole.elapsed());
        let seconds = self.trainer.computed_for();
        // Files are read and written on one thread.
        let around = whole.saturating_sub(seconds);
        let figures = StepFigures {
            seconds: seconds.as_secs_f64(),
            busy_seconds: busy.saturating_sub(around).max(Duration::ZERO).as_secs_f64(),
            loss: trained.metrics["loss"],
            grad_norm: trained.metrics["grad_norm"],
            peak_bytes: peak_bytes()?,
        };
        self.base = version(self.base.version.0 + 1, trained.files, Some((self.base.sha, blob)))?;
        Ok(figures)
    }
}

/// AdamW's, on both sides. Small, since the rewards are drawn.
pub(super) const LEARNING_RATE: f64 = 1e-5;
/// On both sides.
pub(super) const MAX_GRAD_NORM: f64 = 1.0;

/// Most memory that this process has had.
fn peak_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes =
        line.and_then(|line| line.split_whitespace().next()).context("no VmHWM in /proc/self/status")?;
    Ok(kilobytes.parse::<u64>()? * 1024)
}
