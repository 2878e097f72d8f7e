//! A buffer in memory: a Python queue between two processes, as RL frameworks keep finished
//! rollouts.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::process::Command;

use crate::bench::rival;

const SCRIPT: &str = include_str!("memory.py");

/// Rollouts a second, of `bytes` each, through a `multiprocessing.Queue`.
///
/// # Errors
/// There is no Python, or it fails.
pub(super) async fn rollouts_per_s(bytes: usize, time: Duration) -> anyhow::Result<f64> {
    let python = rival::python();
    let fail = || format!("failed to start {}", python.display());
    let mut command = Command::new(&python);
    command.args(["-c", SCRIPT, &bytes.to_string(), &time.as_secs_f64().to_string()]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.with_context(fail)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(
        output.status.success(),
        "the buffer in memory failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    said.trim().parse().with_context(|| format!("the buffer in memory said {said:?}"))
}
