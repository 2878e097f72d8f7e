//! Memory of a process, from `/proc`.

use anyhow::Context;

/// Megabytes of a process that are in memory.
///
/// # Errors
/// There is no such process, or no `/proc`.
pub(crate) fn resident_mb(pid: u32) -> anyhow::Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).with_context(|| format!("failed to read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib * 1024.0 / 1e6)
}
