//! What rules that learn nothing reach on the run's held-out prompts: played by the worker's own program, which has the
//! environments.

use anyhow::{Context, Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::env_step::EnvironmentSpec;
use millrace_schemas::report::Baseline;

use crate::worker;
use millrace_coordinator::fold::decide::evaluation;

/// Plays them; none where the environment has no such rules.
///
/// # Errors
/// The worker's program is not there, or could not play.
pub(super) async fn of(spec: &RunSpec) -> Result<Vec<Baseline>> {
    let has_rules = |environment: &EnvironmentSpec| {
        matches!(environment, EnvironmentSpec::FrozenLake(_) | EnvironmentSpec::Sokoban(_))
    };
    if spec.evaluate.prompts == 0 || !spec.domains.is_empty() || !has_rules(&spec.part(0).environment.clone())
    {
        return Ok(Vec::new());
    }
    let prompts = serde_json::to_vec(&evaluation::resets(spec))?;
    match worker::check(&worker::find()?, ["baselines"], &prompts).await? {
        Ok(told) => {
            serde_json::from_str(&told).context("failed to read what `millrace-worker baselines` said")
        }
        Err(told) => bail!("failed to play the baselines:\n{told}"),
    }
}
