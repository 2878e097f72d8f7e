//! A run by `millrace up`, for benchmarks of whole runs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use millrace_schemas::RunSpec;
use millrace_schemas::report::Report;

use crate::chaos::stack::beside;

/// Plays a run in `folder`, with further `arguments`, and returns its report.
///
/// # Errors
/// The run is refused or fails, or its books do not balance.
pub(super) fn play(folder: &Path, spec: &RunSpec, arguments: &[&str]) -> anyhow::Result<Report> {
    play_by(&beside("millrace")?, folder, spec, arguments)
}

/// The same with this `millrace`.
///
/// # Errors
/// As [`play`].
pub(super) fn play_by(
    program: &Path,
    folder: &Path,
    spec: &RunSpec,
    arguments: &[&str],
) -> anyhow::Result<Report> {
    std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let (file, folder) = (folder.join("run.toml"), folder.join("run"));
    std::fs::write(&file, toml::to_string(spec).context("a run file can be written as TOML")?)?;
    let mut up = Command::new(program);
    let output = up.arg("up").arg(&file).arg("--dir").arg(&folder).arg("--again").args(arguments).output();
    let output = output.context("failed to start `millrace up`")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed:\n{said}", spec.name);
    let path = folder.join("report.json");
    let report = std::fs::read(&path).with_context(|| format!("failed to read {}", path.display()))?;
    let played: Report = serde_json::from_slice(&report)?;
    ensure!(played.balanced && played.audited, "{}: the books are not in order", spec.name);
    Ok(played)
}

/// The run file at `path`.
///
/// # Errors
/// It cannot be read, or is refused.
pub(super) fn run_file(path: &Path) -> anyhow::Result<RunSpec> {
    let fail = || format!("failed to read run file path={}", path.display());
    millrace_schemas::submit::from_toml(&std::fs::read_to_string(path).with_context(fail)?).with_context(fail)
}
