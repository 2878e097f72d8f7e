//! Benchmarks: commands that print figures, with what they are compared with run beside them.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

pub mod cpu;
#[cfg(millrace_torch)]
mod model;
#[cfg(millrace_torch)]
mod rival;
#[cfg(millrace_torch)]
pub mod generate;
pub mod lives;
pub mod queue;
pub mod raw;
#[cfg(millrace_torch)]
pub mod train;

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Leaves the figures as JSON.
fn write(out: &Path, figures: &impl Serialize) -> anyhow::Result<()> {
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::write(out, serde_json::to_string_pretty(figures)? + "\n")
        .with_context(|| format!("failed to write {}", out.display()))?;
    println!("figures in {}", out.display());
    Ok(())
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
