//! The model that is measured, and how: what the benchmarks of language models have in common.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use bytes::Bytes;
use millrace_policy::{CONFIG_FILE, LoadedVersion};
use millrace_schemas::blob::Sha;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{BlobRef, PolicyVersion};
use serde::Deserialize;

use super::rival::{self, Rival};

/// What is measured, beside what.
#[derive(Debug, clap::Args)]
pub(super) struct Setup {
    /// A model directory
    #[arg(long)]
    pub(super) model: PathBuf,
    /// Threads of either
    #[arg(long, default_value_t = 2)]
    pub(super) threads: i32,
    /// The Python that has torch and transformers. Default: .venv/bin/python3 of this folder or one above, else python3
    #[arg(long)]
    python: Option<PathBuf>,
    /// Do not run transformers, nor any other
    #[arg(long)]
    alone: bool,
}

impl Setup {
    /// Starts the rival, unless it is not wanted.
    pub(super) fn rival(&self, script: &str) -> anyhow::Result<Option<Rival>> {
        self.rival_of(&self.python.clone().unwrap_or_else(rival::python), script)
    }

    /// The same in another Python.
    pub(super) fn rival_of(&self, python: &Path, script: &str) -> anyhow::Result<Option<Rival>> {
        (!self.alone).then(|| Rival::start(python, script)).transpose()
    }

    /// A file of the model.
    pub(super) fn read(&self, name: &str) -> anyhow::Result<Bytes> {
        read(&self.model, name)
    }
}

/// What of `config.json` decides how much is computed.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct Shape {
    pub(super) vocab_size: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
}

impl Shape {
    /// That of a model directory.
    pub(super) fn read(model: &Path) -> anyhow::Result<Self> {
        serde_json::from_slice(&read(model, CONFIG_FILE)?).context("failed to read the model's config.json")
    }

    /// Floating-point operations of forwards that nobody can do without: the layers' products for all tokens of
    /// sequences of these `lengths`, the output layer's for so many of them, attention to what each token sees.
    pub(super) fn forward_flops(&self, lengths: impl Iterator<Item = usize>, outputs: usize) -> f64 {
        let Self { hidden_size: width, intermediate_size: inner, num_attention_heads: heads, .. } = *self;
        let head = self.head_dim.unwrap_or(width / heads);
        let (query, kv) = (heads * head, self.num_key_value_heads.unwrap_or(heads) * head);
        let layer = width * (2 * query + 2 * kv + 3 * inner);
        let sequence = |length: usize| self.num_hidden_layers * length * (layer + query * length);
        2.0 * (lengths.map(sequence).sum::<usize>() + self.vocab_size * width * outputs) as f64
    }
}

/// A file of a model directory.
pub(super) fn read(folder: &Path, name: &str) -> anyhow::Result<Bytes> {
    let path = folder.join(name);
    Ok(std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?.into())
}

/// A version of these files, as if it had been committed: made from the version and the batch of `made`.
pub(super) fn version(
    number: u64,
    files: BTreeMap<String, Bytes>,
    made: Option<(Sha, BlobRef)>,
) -> anyhow::Result<LoadedVersion> {
    let refs = files.iter().map(|(name, bytes)| FileRef::whole(name, BlobRef::of(bytes)));
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
