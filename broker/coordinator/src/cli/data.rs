//! The files of rows that a run asks: read and checked where the run is handed in, and put into the object store, so that
//! every worker has the same bytes whatever becomes of the files.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use millrace_queue::Objects;
use millrace_schemas::RunSpec;
use millrace_schemas::dataset::{DatasetSpec, Rows};
use millrace_schemas::env_step::EnvironmentSpec;
use millrace_schemas::submit::ModelSpec;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::term::say;
use super::up::find_worker;

mod parquet;

/// Reads the files that `spec` names, as seen from the folder of `run_file`, checks each row, and writes into `spec` what
/// they hold. Gives the rows as JSONL, in the order of the domains.
///
/// # Errors
/// Names the file, the line and the field that is wrong, and what to do.
pub(super) fn read(spec: &mut RunSpec, run_file: &Path) -> Result<Vec<Bytes>> {
    let datasets = spec.environments_mut().filter_map(EnvironmentSpec::dataset_mut);
    // A relative path begins at the run file's folder.
    let folder = run_file.parent().unwrap_or(Path::new(""));
    let contents = datasets.map(|dataset| read_file(dataset, folder)).collect::<Result<Vec<_>>>()?;
    match spec.refusals().first() {
        Some(refusal) => bail!("{refusal}"),
        None => Ok(contents),
    }
}

fn read_file(dataset: &mut DatasetSpec, folder: &Path) -> Result<Bytes> {
    let path = folder.join(&dataset.path);
    let refused = || format!("rows path = {:?} is refused", dataset.path);
    let content = std::fs::read(&path)
        .with_context(|| format!("failed to read path={}", path.display()))
        .with_context(refused)?;
    let content =
        parquet::as_jsonl(content.into()).context("it is no sound Parquet").with_context(refused)?;
    let rows = Rows::read(content, dataset).with_context(refused)?;
    let found = rows.content();
    if let Some(said) = dataset.content.filter(|said| *said != found) {
        bail!(
            "content says bytes={} sha256={} of path={}, which has bytes={} sha256={}; leave it out, or \
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

/// Has the worker's own program ask every row, as [`read`] gave them, of the tokenizer of the run's model, where both are
/// on this machine.
///
/// # Errors
/// Names the first row whose prompt is too long or cannot be asked.
pub(super) async fn check_prompts(spec: &RunSpec, contents: &[Bytes]) -> Result<()> {
    let ModelSpec::HuggingFace { path: model, .. } = &spec.model else { return Ok(()) };
    let datasets = spec.parts().filter_map(|domain| domain.environment.dataset());
    for (dataset, content) in datasets.zip(contents) {
        check_dataset(dataset, content, model).await?;
    }
    Ok(())
}

async fn check_dataset(dataset: &DatasetSpec, content: &[u8], model: &str) -> Result<()> {
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
    command.arg("-").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("failed to start millrace-worker to check the rows")?;
    let mut rows = child.stdin.take().context("a pipe was asked for")?;
    // One that has found something wrong reads no further; what it says counts.
    let (_, ran) = tokio::join!(
        async move {
            let _ = rows.write_all(content).await;
        },
        child.wait_with_output()
    );
    let ran = ran.context("failed to wait for millrace-worker, which checks the rows")?;
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !ran.status.success() {
        bail!("rows path = {:?} is refused before anything starts:\n{}", dataset.path, told(&ran.stderr));
    }
    say(format_args!("rows {}: {}", dataset.path, told(&ran.stdout)));
    Ok(())
}
