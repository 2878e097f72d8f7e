//! The dataset files of a run. They are read and checked when the run is submitted, and copied to
//! the object store, so that every worker has the same bytes even if the files change.

use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use millrace_queue::Objects;
use millrace_schemas::RunSpec;
use millrace_schemas::dataset::{DatasetSpec, Leak, Prompts, Rows};
use millrace_schemas::env_step::{AGENT, EnvironmentSpec};
use millrace_schemas::submit::{ModelSpec, RunFileError};

use super::term::{remark, say};
use super::worker;

mod parquet;

/// Reads the files that `spec` names, relative to the folder of `run_file`, checks each row, and
/// sets their content in `spec`. Returns the rows as JSONL, in the order of the domains.
///
/// # Errors
/// A row is invalid. The message names the file, the line, the field and the remedy.
pub(super) fn read(spec: &mut RunSpec, run_file: &Path) -> Result<Vec<Bytes>> {
    let datasets = spec.environments_mut().filter_map(EnvironmentSpec::dataset_mut);
    // A relative path starts at the run file's folder.
    let folder = run_file.parent().unwrap_or(Path::new(""));
    let rows = datasets.map(|dataset| read_file(dataset, folder)).collect::<Result<Vec<_>>>()?;
    let refusals = spec.refusals();
    if !refusals.is_empty() {
        return Err(RunFileError::Refused(refusals).into());
    }
    for leak in leaks(spec, &rows)? {
        remark(leak);
    }
    Ok(rows.into_iter().map(Rows::into_bytes).collect())
}

/// A line for each pair of domains of which one trains on prompts that the other holds out.
fn leaks(spec: &RunSpec, rows: &[Rows]) -> Result<Vec<String>> {
    let domains = spec.parts().filter_map(|domain| Some((domain.name?, domain.environment.dataset()?)));
    let domains: Vec<_> = domains.zip(rows).collect();
    let mut lines = Vec::new();
    if domains.len() < 2 {
        return Ok(lines);
    }
    let domains = domains.into_iter().map(|((name, dataset), rows)| Ok((name, Prompts::of(rows, dataset)?)));
    let domains: Vec<_> = domains.collect::<Result<_>>()?;
    for (trains, prompts) in &domains {
        for (holds_out, others) in domains.iter().filter(|(name, _)| name != trains) {
            if let Some(leak) = Leak::find(prompts, others)? {
                lines.push(format!(
                    "warning: what is evaluated is trained on: of domain {trains}, beside domain {holds_out}, {leak}; give both \
                     the same file and held_out, or take these rows out"
                ));
            }
        }
    }
    Ok(lines)
}

fn read_file(dataset: &mut DatasetSpec, folder: &Path) -> Result<Rows> {
    let path = folder.join(&dataset.path);
    let refused = || format!("rows path = {:?} is refused", dataset.path);
    let content = std::fs::read(&path)
        .with_context(|| format!("failed to read path={}", path.display()))
        .with_context(refused)?;
    let content =
        parquet::as_jsonl(content.into()).context("it is not valid Parquet").with_context(refused)?;
    let rows = Rows::read(content, dataset).with_context(refused)?;
    let found = rows.content();
    if let Some(given) = dataset.content.filter(|given| *given != found) {
        bail!(
            "content has bytes={} sha256={}, but path={} has bytes={} sha256={}; leave content out, or \
             restore the file",
            given.blob.bytes,
            given.blob.sha256,
            path.display(),
            found.blob.bytes,
            found.blob.sha256
        );
    }
    dataset.content = Some(found);
    Ok(rows)
}

/// Stores the rows that [`read`] returned. Storing them twice is harmless.
///
/// # Errors
/// The store cannot be reached or refuses.
pub(super) async fn store(objects: &Objects, spec: &RunSpec, contents: Vec<Bytes>) -> Result<()> {
    for content in contents {
        objects
            .put_blob(&spec.name, content)
            .await
            .context("failed to store the rows in the object store")?;
    }
    Ok(())
}

/// Lets `millrace-worker` encode every row's prompt with the tokenizer of the run's model, if both
/// are on this machine. `tools` are words of its command line: the servers whose declarations are in
/// the prompts of runs with tools.
///
/// # Errors
/// A prompt is too long or cannot be encoded. The message names the first such row.
pub(super) async fn check_prompts(spec: &RunSpec, contents: &[Bytes], tools: &[String]) -> Result<()> {
    let ModelSpec::HuggingFace { path: model, .. } = &spec.model else { return Ok(()) };
    let environments = spec.parts().map(|domain| domain.environment);
    let datasets = environments.filter_map(|environment| Some((environment, environment.dataset()?)));
    for ((environment, dataset), content) in datasets.zip(contents) {
        if environment.pool() == AGENT {
            // An agent makes its own prompts.
            continue;
        }
        check_dataset(dataset, content, (model, tools)).await?;
    }
    Ok(())
}

async fn check_dataset(
    dataset: &DatasetSpec,
    content: &[u8],
    (model, tools): (&str, &[String]),
) -> Result<()> {
    let Some(program) = worker::find().ok().filter(|_| Path::new(model).is_dir()) else {
        say(format_args!(
            "the model or millrace-worker is not on this machine: whether prompts of {} are too long is checked when they \
             are played",
            dataset.path
        ));
        return Ok(());
    };
    let spec = serde_json::to_string(dataset)?;
    let words = ["check-data", "--model", model, "--spec", &spec];
    let tools = tools.iter().map(String::as_str).filter(|_| !dataset.tools.is_empty());
    let words = words.into_iter().chain(tools).chain(["-"]);
    let summary = worker::check(&program, words, content).await?;
    match summary {
        Ok(summary) => say(format_args!("rows {}: {summary}", dataset.path)),
        Err(summary) => bail!("rows path = {:?} is refused before anything starts:\n{summary}", dataset.path),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two domains of one file, of which the second holds out this share.
    fn warned(folder: &Path, held_out: f64) -> Vec<String> {
        let rows: String = (0..40).map(|i| format!("{{\"prompt\": \"{i}\", \"answer\": {i}}}\n")).collect();
        std::fs::write(folder.join("rows.jsonl"), rows).unwrap();
        let domain = |name: &str, held_out: f64| {
            let environment =
                format!(r#"{{ name = "dataset", path = "rows.jsonl", held_out = {held_out} }}"#);
            format!("[[domains]]\nname = \"{name}\"\nshare = 1\nenvironment = {environment}\n")
        };
        let run = format!(
            "name = \"two\"\nsteps = 1\nrewards = [{{ rule = \"success\" }}]\n\
             model = {{ kind = \"hugging_face\", path = \"none\", context = 2048 }}\n\
             rollout = {{ max_new_tokens = 8 }}\nalgorithm = {{ learning_rate = 1e-5 }}\n{}{}",
            domain("one", 0.25),
            domain("other", held_out)
        );
        let mut spec: RunSpec = toml::from_str(&run).unwrap();
        let environments = spec.environments_mut().filter_map(EnvironmentSpec::dataset_mut);
        let rows = environments.map(|dataset| read_file(dataset, folder).unwrap()).collect::<Vec<_>>();
        leaks(&spec, &rows).unwrap()
    }

    #[test]
    fn domains_that_train_on_what_another_holds_out_are_named() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(warned(folder.path(), 0.25), Vec::<String>::new());
        let [line] = &warned(folder.path(), 0.5)[..] else { panic!("one of two directions") };
        assert!(
            line.contains("of domain one, beside domain other, prompts=10 are trained on and held out there"),
            "{line}"
        );
    }
}
