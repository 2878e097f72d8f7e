//! Versions of real optimiser steps as changes of their anchor, and of the version before.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use bytes::Bytes;
use millrace_objects::delta::{apply, encode_at_any_size};
use millrace_policy::{CONFIG_FILE, MODEL_FILE, NoPast, TrainStep, Trainer};
use millrace_schemas::BlobRef;
use millrace_schemas::blob::Sha;
use millrace_schemas::submit::{Algorithm, Loss, ModelSpec, Precision};
use millrace_workers::torch::{TorchTrainer, set_threads};
use serde::Serialize;

use super::super::median;
use super::super::model::{Shape, version};
use super::super::train::rollouts::Data;
use super::{Args, mb, name};

/// That of reinforcement learning on language models, as a rule.
const LEARNING_RATE: f64 = 1e-6;
/// Versions that a worker may be behind.
const LATE: [usize; 4] = [1, 10, 100, 1_000];

/// A version beside its anchor and the version before.
#[derive(Debug, Clone, Copy, Serialize)]
struct Version {
    /// Of the 16-bit words.
    changed_share: f64,
    /// Changes since the anchor.
    bytes: u64,
    /// Changes since the version before.
    chain_bytes: u64,
    encode_seconds: f64,
    /// Making the weights from anchor and changes, and proving them.
    apply_seconds: f64,
}

/// A model's versions.
#[derive(Debug, Serialize)]
pub(super) struct Deltas {
    model: String,
    /// Of one version.
    bytes: u64,
    learning_rate: f64,
    /// By distance from the anchor, from 1.
    versions: Vec<Version>,
}

/// Two versions, one step apart.
pub(super) struct Pair {
    pub(super) anchor: Bytes,
    pub(super) next: Bytes,
}

/// The model directory's.
pub(super) fn of_directory(args: &Args, model: &Path) -> anyhow::Result<(Deltas, Pair)> {
    set_threads(args.threads);
    let path = model.to_str().context("--model is no path in UTF-8")?;
    let spec = ModelSpec::HuggingFace { path: path.to_owned(), context: 512, precision: Precision::Bf16 };
    train(name(model), &spec, Shape::read(model)?, (args.steps, args.rollouts))
}

/// Those of a model whose weights are drawn, of the width of a model of half a billion weights.
pub(super) fn of_drawn(args: &Args, layers: u32) -> anyhow::Result<(Deltas, Pair)> {
    set_threads(args.threads);
    let folder = tempfile::tempdir()?;
    let spec = ModelSpec::Decoder {
        vocabulary: args.drawn_vocabulary,
        layers,
        width: 896,
        heads: 14,
        feed_forward: 4_864,
        context: 512,
        init_std: 0.02,
    };
    for (name, content) in TorchTrainer::new().initialise(&spec, 1)?.files {
        std::fs::write(folder.path().join(name), content)?;
    }
    let path = folder.path().to_str().context("the temporary folder is no path in UTF-8")?;
    let bf16 = ModelSpec::HuggingFace { path: path.to_owned(), context: 512, precision: Precision::Bf16 };
    let shape = Shape::read(folder.path())?;
    train(format!("drawn, {layers} layers"), &bf16, shape, (args.drawn_steps, args.rollouts))
}

fn train(
    model: String,
    spec: &ModelSpec,
    shape: Shape,
    (steps, rollouts): (usize, usize),
) -> anyhow::Result<(Deltas, Pair)> {
    let algorithm = Algorithm {
        loss: Loss::PolicyGradient,
        entropy: 0.0,
        epochs: 1,
        learning_rate: LEARNING_RATE,
        ..Algorithm::default()
    };
    let mut trainer = TorchTrainer::new();
    let first = trainer.initialise(spec, 1)?;
    let mut base = version(0, first.files, None)?;
    let mut versions = Vec::new();
    let mut made: Vec<Bytes> = Vec::new();
    // Version 1 is the anchor: version 0 is written by another hand, with another header.
    for distance in 0..=steps {
        let data = Data::drawn(shape, distance as u64, rollouts, (0, 0));
        let batch = data.batch(base.version, base.sha)?;
        let blob = BlobRef::of(&base.version.0.to_le_bytes());
        let step = TrainStep {
            batch: &batch,
            blob,
            algorithm: &algorithm,
            reference: None,
            assignment: None,
            checkpoint: false,
            past: &NoPast,
        };
        let trained = trainer.step(&base, &step)?;
        let weights = trained.files.get(MODEL_FILE).cloned().context("a step makes weights")?;
        base = version(base.version.0 + 1, trained.files, Some((base.sha, blob)))?;
        // The trainer has the others.
        base.files.retain(|name, _| name == CONFIG_FILE);
        if let (Some(anchor), Some(before)) = (made.first(), made.last()) {
            versions.push(compare(anchor, before, &weights)?);
        }
        println!("{model}: {distance} of {steps} steps");
        // The anchor, the first after it, and the latest.
        made.truncate(2);
        made.push(weights);
    }
    let [anchor, next, ..] = &made[..] else { anyhow::bail!("no step was asked for") };
    let pair = Pair { anchor: anchor.clone(), next: next.clone() };
    let bytes = anchor.len() as u64;
    Ok((Deltas { model, bytes, learning_rate: LEARNING_RATE, versions }, pair))
}

fn compare(anchor: &[u8], before: &[u8], made: &[u8]) -> anyhow::Result<Version> {
    const WHY: &str = "versions of one model have one length";
    let changed = anchor.chunks_exact(2).zip(made.chunks_exact(2)).filter(|(was, is)| was != is).count();
    let began = Instant::now();
    let delta = encode_at_any_size(anchor, made).context(WHY)?;
    let encode_seconds = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let back = apply(anchor, &delta)?;
    let proof = Sha::of(&back);
    let apply_seconds = began.elapsed().as_secs_f64();
    anyhow::ensure!(proof == Sha::of(made) && back == made, "the changes give other weights");
    Ok(Version {
        changed_share: changed as f64 / (made.len() / 2) as f64,
        bytes: delta.len() as u64,
        chain_bytes: encode_at_any_size(before, made).context(WHY)?.len() as u64,
        encode_seconds,
        apply_seconds,
    })
}

impl Deltas {
    /// Bytes that a worker fetches which is `late` versions late, where each version whose number is a multiple of
    /// the measured steps and one is an anchor: that of an empty worker, of one with the anchor, of one that follows a
    /// chain from its own version.
    fn late(&self, late: usize) -> (u64, Option<u64>, u64) {
        let every = self.versions.len() + 1;
        let distance = late % every;
        let delta = distance.checked_sub(1).map_or(0, |at| self.versions[at].bytes);
        let chain = median(self.versions.iter().map(|version| version.chain_bytes as f64).collect());
        (self.bytes + delta, (late < every).then_some(delta), (chain * late as f64) as u64)
    }
}

/// Both tables of all models.
pub(super) fn table(all: &[Deltas]) -> String {
    let mut text = String::from(
        "| model, bf16 | steps from the anchor | changed | changes since the anchor | since the version before | whole | encode | \
         apply and prove |\n|---|---|---|---|---|---|---|---|\n",
    );
    for deltas in all {
        let last = deltas.versions.len();
        for distance in [1, 2, 4, 8, 16, 32].into_iter().filter(|distance| *distance <= last) {
            let version = deltas.versions[distance - 1];
            let _ = writeln!(
                text,
                "| {} | {distance} | {:.2} % | {:.2} MB | {:.2} MB | {:.0} MB | {:.2} s | {:.2} s |",
                deltas.model,
                100.0 * version.changed_share,
                mb(version.bytes),
                mb(version.chain_bytes),
                mb(deltas.bytes),
                version.encode_seconds,
                version.apply_seconds,
            );
        }
    }
    text.push_str(
        "\n| model | an anchor every | late by | whole version | anchor and changes | with the anchor | chain |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for deltas in all {
        for late in LATE {
            let (empty, kept, chain) = deltas.late(late);
            let kept = kept.map_or_else(|| "-".to_owned(), |bytes| format!("{:.2} MB", mb(bytes)));
            let _ = writeln!(
                text,
                "| {} | {} | {late} | {:.0} MB | {:.0} MB | {kept} | {:.0} MB |",
                deltas.model,
                deltas.versions.len() + 1,
                mb(deltas.bytes),
                mb(empty),
                mb(chain),
            );
        }
    }
    text
}
