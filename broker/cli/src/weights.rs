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

/// What an exported folder has beside its files.
const MANIFEST: &str = "manifest.json";

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
/// appears atomically, and nothing but an earlier export is removed for it.
pub(super) async fn export(
    objects: &Objects,
    run: &RunId,
    version: PolicyVersion,
    to: &Path,
    optimizer: bool,
) -> Result<()> {
    let manifest = manifest(objects, run, version).await?;
    let fail = || format!("failed to write folder={}", to.display());
    let Some(name) = to.file_name() else {
        bail!(
            "to={}: it ends in no name; name the folder that is to be made, as {run}-{version}",
            to.display()
        )
    };
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).with_context(fail)?;
    }
    // Of this process alone, and never there before.
    let beside = to.with_file_name(format!(".{}.{}.part", name.to_string_lossy(), std::process::id()));
    std::fs::create_dir(&beside).with_context(|| format!("failed to make folder={}", beside.display()))?;
    let done = match fill(&beside, objects, run, &manifest, optimizer).await {
        Ok(()) => make_way(to).and_then(|()| std::fs::rename(&beside, to).with_context(fail)),
        Err(error) => Err(error),
    };
    if done.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_dir_all(&beside);
    }
    done
}

async fn fill(
    folder: &Path,
    objects: &Objects,
    run: &RunId,
    manifest: &Manifest,
    optimizer: bool,
) -> Result<()> {
    let write = |name: &Path, content: &[u8]| {
        std::fs::write(name, content).with_context(|| format!("failed to write {}", name.display()))
    };
    for file in manifest.files.iter().filter(|file| optimizer || !is_optimizer(file)) {
        let content = match objects.get_file(run, file).await {
            Ok(content) => content,
            Err(ObjectError::NotFound { .. }) => bail!(
                "the files of {} were collected: a run keeps its newest ones, see `weights` in the run file",
                manifest.version
            ),
            Err(e) => return Err(e.into()),
        };
        write(&file_name::file_in(folder, &file.name)?, &content)?;
    }
    write(&folder.join(MANIFEST), &manifest.to_json())
}

/// Removes an earlier export, which has a version's manifest. Any other folder stays.
fn make_way(to: &Path) -> Result<()> {
    let fail = || format!("failed to replace folder={}", to.display());
    if !to.exists() {
        return Ok(());
    }
    let manifest = std::fs::read(to.join(MANIFEST)).ok();
    if manifest.is_some_and(|json| serde_json::from_slice::<Manifest>(&json).is_ok()) {
        return std::fs::remove_dir_all(to).with_context(fail);
    }
    std::fs::remove_dir(to).with_context(|| format!("{}: it is no earlier export", fail()))
}

/// Whatever loads all safetensors of a folder must not find the optimiser's among the weights.
fn is_optimizer(file: &FileRef) -> bool {
    file.name.starts_with("optimizer")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use millrace_schemas::BlobRef;
    use millrace_schemas::blob::Sha;

    use super::*;

    /// A store with v1 of a run, whose one file has `content`.
    async fn committed(run: &RunId, content: &'static [u8]) -> Objects {
        let (objects, content) = (Objects::memory(), Bytes::from_static(content));
        let blob = BlobRef::of(&content);
        objects.put(&paths::blob(run, &blob.sha256), content).await.unwrap();
        let manifest = Manifest {
            run: run.clone(),
            version: PolicyVersion(1),
            parent: None,
            batch: None,
            config: Sha::of(b"spec"),
            files: vec![FileRef::whole("model.safetensors", blob)],
            metrics: BTreeMap::new(),
        };
        objects.put(&paths::manifest(run, PolicyVersion(1)), manifest.to_json().into()).await.unwrap();
        objects
    }

    /// What a mistaken name or a name like another's would cost.
    #[tokio::test]
    async fn an_export_removes_nothing_but_an_earlier_export() {
        let run: RunId = "sums".parse().unwrap();
        let objects = committed(&run, b"weights").await;
        let to = async |to: &Path| export(&objects, &run, PolicyVersion(1), to, false).await;
        let folder = tempfile::tempdir().unwrap();
        let own = |name: &str| folder.path().join(name);
        for name in ["model.new", "site"] {
            std::fs::create_dir(own(name)).unwrap();
            // A manifest of another kind, as a web page has.
            std::fs::write(own(name).join(MANIFEST), "{\"name\": \"page\"}").unwrap();
        }
        for nameless in ["", "site/..", "."] {
            let refused = to(&folder.path().join(nameless).join("..")).await.unwrap_err().to_string();
            assert!(refused.contains("ends in no name"), "{refused}");
        }
        let refused = format!("{:#}", to(&own("site")).await.unwrap_err());
        assert!(refused.contains("no earlier export"), "{refused}");
        // Names that differ only in what follows a dot, at once, one of them again.
        for _ in 0..2 {
            let (one, other) = (own("model"), own("model.v2"));
            let (one, other) = tokio::join!(to(&one), to(&other));
            one.unwrap();
            other.unwrap();
        }
        let mut left: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["model", "model.new", "model.v2", "site"]);
        assert!(own("site").join(MANIFEST).is_file() && own("model.new").join(MANIFEST).is_file());
        assert_eq!(std::fs::read(own("model").join("model.safetensors")).unwrap(), b"weights");
    }
}
