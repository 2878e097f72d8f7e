//! The files of rows that a run asks: read and checked where the run is handed in, and put into the object store, so that
//! every worker has the same bytes whatever becomes of the files.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use millrace_queue::Objects;
use millrace_schemas::RunSpec;
use millrace_schemas::dataset::{DatasetSpec, Rows};
use millrace_schemas::submit::ModelSpec;
use tokio::process::Command;

use super::term::say;
use super::up::find_worker;

/// Reads the files that `spec` names, as seen from the folder of `run_file`, checks each row, and writes into `spec` what
/// they hold.
///
/// # Errors
/// Names the file, the line and the field that is wrong, and what to do.
pub(super) fn read(spec: &mut RunSpec, run_file: &Path) -> Result<Vec<Bytes>> {
    let Some(dataset) = spec.environment.dataset_mut() else { return Ok(Vec::new()) };
    let content = read_file(dataset, &file_of(dataset, run_file))?;
    match spec.refusals().first() {
        Some(refusal) => bail!("{refusal}"),
        None => Ok(vec![content]),
    }
}

/// Where the rows are: a relative path begins at the run file's folder.
fn file_of(dataset: &DatasetSpec, run_file: &Path) -> PathBuf {
    run_file.parent().unwrap_or(Path::new("")).join(&dataset.path)
}

fn read_file(dataset: &mut DatasetSpec, path: &Path) -> Result<Bytes> {
    let refused = || format!("environment.path = {:?} is refused", dataset.path);
    let content = std::fs::read(path)
        .with_context(|| format!("failed to read path={}", path.display()))
        .with_context(refused)?;
    let rows = Rows::read(Bytes::from(content), dataset).with_context(refused)?;
    let found = rows.content();
    if let Some(said) = dataset.content.filter(|said| *said != found) {
        bail!(
            "environment.content says bytes={} sha256={} of path={}, which has bytes={} sha256={}; leave it out, or \
             give the file of then",
            said.blob.bytes,
            said.blob.sha256,
            path.display(),
            found.blob.bytes,
            found.blob.sha256
        );
    }
    dataset.content = Some(found);
    Ok(rows.into_bytes())
}

/// Puts what [`read`] gave into the object store; what is there already is harmless.
///
/// # Errors
/// The store cannot be reached or refuses.
pub(super) async fn store(objects: &Objects, spec: &RunSpec, contents: Vec<Bytes>) -> Result<()> {
    for content in contents {
        objects
            .put_blob(&spec.name, content)
            .await
            .context("failed to put the rows into the object store")?;
    }
    Ok(())
}

/// Has the worker's own program ask every row of the tokenizer of the run's model, where both are on this machine.
///
/// # Errors
/// Names the first row whose prompt is too long or cannot be asked.
pub(super) async fn check_prompts(spec: &RunSpec, run_file: &Path) -> Result<()> {
    let (Some(dataset), ModelSpec::HuggingFace { path: model, .. }) =
        (spec.environment.dataset(), &spec.model)
    else {
        return Ok(());
    };
    let worker = find_worker().ok().filter(|_| Path::new(model).is_dir());
    let Some(worker) = worker else {
        say(format_args!(
            "the model or millrace-worker is not on this machine: whether its prompts of {} are too long shows when they \
             are asked",
            dataset.path
        ));
        return Ok(());
    };
    let mut command = Command::new(worker);
    command.arg("check-data").arg("--model").arg(model).arg("--spec").arg(serde_json::to_string(dataset)?);
    command.arg("--").arg(file_of(dataset, run_file));
    let ran = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let ran = ran.context("failed to start millrace-worker to check the rows")?;
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !ran.status.success() {
        bail!(
            "environment.path = {:?} is refused before anything starts:\n{}",
            dataset.path,
            told(&ran.stderr)
        );
    }
    say(format_args!("rows {}: {}", dataset.path, told(&ran.stdout)));
    Ok(())
}
