//! Baselines: rules that learn nothing, played on the run's held-out prompts by `millrace-worker`,
//! which has the environments.

use anyhow::{Context, Result, bail};
use millrace_schemas::RunSpec;
use millrace_schemas::env_step::EnvironmentSpec;
use millrace_schemas::report::Baseline;

use crate::worker;
use millrace_coordinator::fold::decide::evaluation;

/// Plays the baselines; empty if the environment has none.
///
/// # Errors
/// `millrace-worker` is missing, or failed.
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
        Ok(summary) => {
            serde_json::from_str(&summary).context("failed to read the output of `millrace-worker baselines`")
        }
        Err(summary) => bail!("failed to play the baselines:\n{summary}"),
    }
}
