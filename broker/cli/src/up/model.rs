//! Checks the model directory before anything is started, by `millrace-worker`, which will read it.

use std::path::Path;

use anyhow::{Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::submit::ModelSpec;

use crate::term::say;
use crate::worker;

/// Checks the directory of the run's model, if it has one.
///
/// # Errors
/// The directory is invalid. The message lists all that is wrong.
pub(crate) async fn check(spec: &RunSpec) -> Result<()> {
    let ModelSpec::HuggingFace { path, context, .. } = &spec.model else { return Ok(()) };
    if !Path::new(path).is_dir() {
        bail!("model.path = {path:?} is refused before anything starts: {}", absent(path));
    }
    let context = context.to_string();
    let mut args = vec!["check-model", "--context", &context];
    if spec.parts().any(|domain| domain.environment.speaks_text()) {
        args.push("--text");
    }
    args.extend(["--", path]);
    match worker::check(&worker::find()?, args, b"").await? {
        Ok(summary) => say(format_args!("model {path}: {summary}")),
        Err(summary) => bail!("model.path = {path:?} is refused before anything starts:\n{summary}"),
    }
    Ok(())
}

/// Why a directory that is not there cannot be a model, and the remedy.
pub(crate) fn absent(path: &str) -> String {
    let (id, directory) = match path.split_once('/') {
        Some((owner, name)) if !owner.is_empty() && !owner.starts_with(['.', '~']) && !name.contains('/') => {
            (path, format!("models/{name}"))
        }
        _ => ("ID", "DIR".to_owned()),
    };
    format!(
        "there is no such directory on this machine, and ids of the Hugging Face hub are not fetched; \
         `hf download {id} --local-dir {directory}` fetches one, then write path = {directory:?}"
    )
}
