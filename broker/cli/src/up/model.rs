//! Checks the model directory before anything is started, by `millrace-worker`, which will read it.

use anyhow::{Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::submit::ModelSpec;

use crate::term::say;
use crate::worker;

/// Checks the directory of the run's model, if it has one.
///
/// # Errors
/// The directory is invalid. The message lists all that is wrong.
pub(super) async fn check(spec: &RunSpec) -> Result<()> {
    let ModelSpec::HuggingFace { path, context, .. } = &spec.model else { return Ok(()) };
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
