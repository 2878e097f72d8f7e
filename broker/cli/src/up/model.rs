//! The model's directory, looked at before anything is started: by the worker's own program, which will read it.

use anyhow::{Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::submit::ModelSpec;

use crate::term::say;
use crate::worker;

/// Has the directory of the run's model checked, if it has one.
///
/// # Errors
/// Says everything that is wrong with it.
pub(super) async fn check(spec: &RunSpec) -> Result<()> {
    let ModelSpec::HuggingFace { path, context, .. } = &spec.model else { return Ok(()) };
    let context = context.to_string();
    let mut args = vec!["check-model", "--context", &context];
    if spec.parts().any(|domain| domain.environment.speaks_text()) {
        args.push("--text");
    }
    args.extend(["--", path]);
    match worker::check(&worker::find()?, args, b"").await? {
        Ok(told) => say(format_args!("model {path}: {told}")),
        Err(told) => bail!("model.path = {path:?} is refused before anything starts:\n{told}"),
    }
    Ok(())
}
