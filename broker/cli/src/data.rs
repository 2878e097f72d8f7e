//! The files of rows that a run asks: read and checked where the run is handed in, and put into the object store, so that
//! every worker has the same bytes whatever becomes of the files.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use millrace_queue::Objects;
use millrace_schemas::RunSpec;
use millrace_schemas::dataset::{DatasetSpec, Rows};
use millrace_schemas::env_step::EnvironmentSpec;
use millrace_schemas::submit::ModelSpec;

use super::term::say;
use super::worker;

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
    let Some(program) = worker::find().ok().filter(|_| Path::new(model).is_dir()) else {
        say(format_args!(
            "the model or millrace-worker is not on this machine: whether its prompts of {} are too long shows when they \
             are asked",
            dataset.path
        ));
        return Ok(());
    };
    let spec = serde_json::to_string(dataset)?;
    let told =
        worker::check(&program, ["check-data", "--model", model, "--spec", &spec, "-"], content).await?;
    match told {
        Ok(told) => say(format_args!("rows {}: {told}", dataset.path)),
        Err(told) => bail!("rows path = {:?} is refused before anything starts:\n{told}", dataset.path),
    }
    Ok(())
}
