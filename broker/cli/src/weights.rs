//! `millrace weights`: a run's versions, and one of them as a model directory.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use millrace_queue::{ObjectError, Objects};
use millrace_schemas::blob::paths;
use millrace_schemas::publish_weights::Manifest;
use millrace_schemas::train_shard::FileRef;
use millrace_schemas::{PolicyVersion, RunId, file_name};

use super::connect::ConnectionArgs;
use super::metrics;
use super::term::{say, thousands};

/// Arguments of `millrace weights`.
#[derive(Debug, clap::Args)]
pub(super) struct WeightsArgs {
    #[command(subcommand)]
    command: WeightsCommand,
}

#[derive(Debug, clap::Subcommand)]
enum WeightsCommand {
    /// List the versions of a run
    Ls {
        /// The run
        run: RunId,
        /// Print the metrics of each train step instead, a JSON object a line, as in the metrics.jsonl of
        /// a `millrace up`
        #[arg(long)]
        json: bool,
    },
    /// Write a version as a model directory, which vLLM, SGLang and transformers load as it is
    Export {
        /// The run
        run: RunId,
        /// The version; without it, the newest
        #[arg(long, value_name = "N")]
        version: Option<u64>,
        /// The folder to write
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// Also the optimiser's state
        #[arg(long)]
        optimizer: bool,
    },
}

impl WeightsArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        let objects = connection.open_objects()?;
        match self.command {
            WeightsCommand::Ls { run, json: false } => ls(&objects, &run).await?,
            WeightsCommand::Ls { run, json: true } => ls_json(&objects, &run).await?,
            WeightsCommand::Export { run, version, to, optimizer } => {
                let version = match version {
                    Some(version) => PolicyVersion(version),
                    None => newest(&objects, &run).await?,
                };
                export(&objects, &run, version, &to, optimizer).await?;
                say(format_args!("{version} of {run} is in {}", to.display()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The committed versions of a run, oldest first.
async fn versions(objects: &Objects, run: &RunId) -> Result<Vec<PolicyVersion>> {
    let below = paths::weights(run);
    let found = objects.list(&below).await?;
    let number =
        |path: &String| path.strip_prefix(&below)?.strip_prefix("/v")?.split('/').next()?.parse().ok();
    let mut versions: Vec<PolicyVersion> = found.iter().filter_map(number).map(PolicyVersion).collect();
    versions.sort_unstable();
    if versions.is_empty() {
        bail!("run={run} has no versions in this object store");
    }
    Ok(versions)
}

async fn newest(objects: &Objects, run: &RunId) -> Result<PolicyVersion> {
    versions(objects, run).await?.pop().context("a run with versions has a newest")
}

/// The manifest of a version.
///
/// # Errors
/// It is not committed or cannot be read.
pub(super) async fn manifest(objects: &Objects, run: &RunId, version: PolicyVersion) -> Result<Manifest> {
    let path = paths::manifest(run, version);
    let Some(bytes) = objects.get(&path).await? else {
        bail!("run={run} has no {version} in this object store")
    };
    serde_json::from_slice(&bytes).with_context(|| format!("failed to read path={path}"))
}

async fn ls(objects: &Objects, run: &RunId) -> Result<()> {
    for version in versions(objects, run).await? {
        let manifest = manifest(objects, run, version).await?;
        let mut kept = true;
        for file in &manifest.files {
            kept = kept && objects.has_file(run, file).await?;
        }
        let bytes: u64 = manifest.files.iter().map(FileRef::written_bytes).sum();
        let metrics = manifest.metrics.iter().take(4).map(|(name, value)| format!("{name} {value:.4}"));
        let kept = if kept { "" } else { "  (files collected)" };
        let metrics = metrics.collect::<Vec<_>>().join("  ");
        say(format_args!("{:>8}  {:>15} bytes{kept}  {metrics}", version.to_string(), thousands(bytes)));
    }
    Ok(())
}

async fn ls_json(objects: &Objects, run: &RunId) -> Result<()> {
    let commits = metrics::commits(objects, &paths::weights(run)).await?;
    for version in versions(objects, run).await?.into_iter().filter(|version| version.0 > 0) {
        say(serde_json::to_string(&metrics::of_step(objects, run, version, &commits).await?)?);
    }
    Ok(())
}

/// Writes a version's files to the folder `to`. Every file is verified by its hash; the folder
/// appears atomically.
pub(super) async fn export(
    objects: &Objects,
    run: &RunId,
    version: PolicyVersion,
    to: &Path,
    optimizer: bool,
) -> Result<()> {
    let manifest = manifest(objects, run, version).await?;
    let fail = || format!("failed to write folder={}", to.display());
    let beside = to.with_extension("new");
    if beside.exists() {
        std::fs::remove_dir_all(&beside).with_context(fail)?;
    }
    std::fs::create_dir_all(&beside).with_context(fail)?;
    for file in manifest.files.iter().filter(|file| optimizer || !is_optimizer(file)) {
        let content = match objects.get_file(run, file).await {
            Ok(content) => content,
            Err(ObjectError::NotFound { .. }) => bail!(
                "the files of {version} were collected: a run keeps its newest ones, see `weights` in the run file"
            ),
            Err(e) => return Err(e.into()),
        };
        std::fs::write(file_name::file_in(&beside, &file.name)?, content).with_context(fail)?;
    }
    std::fs::write(beside.join("manifest.json"), manifest.to_json()).with_context(fail)?;
    make_way(to)?;
    std::fs::rename(&beside, to).with_context(fail)
}

/// Removes an earlier export. Any other folder stays.
fn make_way(to: &Path) -> Result<()> {
    let fail = || format!("failed to replace folder={}", to.display());
    if !to.exists() {
        return Ok(());
    }
    if to.join("manifest.json").is_file() {
        return std::fs::remove_dir_all(to).with_context(fail);
    }
    std::fs::remove_dir(to).with_context(|| format!("{}: it is no earlier export", fail()))
}

/// Whatever loads all safetensors of a folder must not find the optimiser's among the weights.
fn is_optimizer(file: &FileRef) -> bool {
    file.name.starts_with("optimizer")
}
