//! `millrace scale`: what the autoscaler decided, and why.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Subcommand;
use millrace_autoscaler::ScalingFile;
use millrace_schemas::scale::{ScaleStatus, Scaled};

use super::connect::ConnectionArgs;
use super::term::say;

/// Arguments of `millrace scale`.
#[derive(Debug, clap::Args)]
pub(super) struct ScaleArgs {
    #[command(subcommand)]
    command: ScaleCommand,
}

#[derive(Debug, Subcommand)]
enum ScaleCommand {
    /// Explain the last decision about each pool of workers
    Status {
        /// This pool alone, with the decisions before
        pool: Option<String>,
        /// JSON, as `nats req mr.api.scale ''` gives it
        #[arg(long)]
        json: bool,
    },
    /// Check a scaling file
    Check {
        /// The file
        file: PathBuf,
    },
}

impl ScaleArgs {
    pub(super) async fn run(self, connection: &ConnectionArgs) -> Result<ExitCode> {
        match self.command {
            ScaleCommand::Status { pool, json } => status(connection, pool.as_deref(), json).await,
            ScaleCommand::Check { file } => {
                let checked = ScalingFile::read(&file)?;
                say(format_args!("{} is valid; pools: {}", file.display(), checked.pools.len()));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn status(connection: &ConnectionArgs, pool: Option<&str>, json: bool) -> Result<ExitCode> {
    let mut pools: ScaleStatus = connection.api().await?.call("scale", &serde_json::Value::Null).await?;
    if let Some(name) = pool {
        let known = pools.keys().cloned().collect::<Vec<_>>().join(", ");
        pools.retain(|pool, _| pool == name);
        if pools.is_empty() {
            bail!("no decision about a pool {name:?}; known: {known}");
        }
    }
    if json {
        say(serde_json::to_string_pretty(&pools)?);
        return Ok(ExitCode::SUCCESS);
    }
    if pools.is_empty() {
        say("nothing is scaled; `millrace coordinator --scale FILE` or `millrace up --autoscale` does it");
    }
    let now_ms = millrace_coordinator::shell::clock::unix_ms();
    for (name, known) in &pools {
        say(line(name, &known.last, now_ms));
        if pool.is_some() {
            known.earlier.iter().for_each(|scaled| say(line("", scaled, now_ms)));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One decision in one line.
fn line(name: &str, scaled: &Scaled, now_ms: u64) -> String {
    let Scaled { before, desired, leave, unix_ms, dry_run, reason, .. } = scaled;
    let ago = now_ms.saturating_sub(*unix_ms) / 1_000;
    let leave: Vec<&str> = leave.iter().map(millrace_schemas::WorkerId::as_str).collect();
    let leave = if leave.is_empty() { String::new() } else { format!("; leaves: {}", leave.join(", ")) };
    let dry = if *dry_run { " (dry run)" } else { "" };
    format!("{name:<12} {before:>4} -> {desired:<4}{dry} {ago:>5} s ago  {reason}{leave}")
}

#[cfg(test)]
mod tests {
    use millrace_schemas::scale::{ScaleCause, ScaleLimit, ScaleReason};

    use super::*;

    #[test]
    fn a_decision_tells_what_changes_and_why() {
        let scaled = Scaled {
            pool: "generate".into(),
            before: 5,
            desired: 3,
            leave: vec!["generate-4".parse().unwrap()],
            unix_ms: 1_000,
            dry_run: true,
            reason: ScaleReason {
                cause: ScaleCause::NoRun,
                limit: Some(ScaleLimit::Step),
                wanted: 0.0,
                budget: None,
            },
        };
        let line = line("generate", &scaled, 8_500);
        assert_eq!(
            line,
            "generate        5 -> 3    (dry run)     7 s ago  no run works; one step at a time; leaves: generate-4"
        );
    }
}
