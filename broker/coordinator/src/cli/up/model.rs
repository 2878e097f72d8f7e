//! The model's directory, looked at before anything is started: by the worker's own program, which will read it.

use std::process::Stdio;

use anyhow::{Context, Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::submit::ModelSpec;
use tokio::process::Command;

use super::super::term::say;
use super::find_worker;

/// Has the directory of the run's model checked, if it has one.
///
/// # Errors
/// Says everything that is wrong with it.
pub(super) async fn check(spec: &RunSpec) -> Result<()> {
    let ModelSpec::HuggingFace { path, context, .. } = &spec.model else { return Ok(()) };
    let mut command = Command::new(find_worker()?);
    command.arg("check-model").args(["--context", &context.to_string()]);
    if spec.parts().any(|domain| domain.environment.speaks_text()) {
        command.arg("--text");
    }
    command.arg("--").arg(path);
    let ran = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let ran = ran.context("failed to start millrace-worker to check the model")?;
    let told = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !ran.status.success() {
        bail!("model.path = {path:?} is refused before anything starts:\n{}", told(&ran.stderr));
    }
    say(format_args!("model {path}: {}", told(&ran.stdout)));
    Ok(())
}
