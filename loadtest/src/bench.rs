//! Benchmarks: commands that print figures, with what they are compared with run beside them.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;

pub mod bare;
pub mod cpu;
pub mod division;
#[cfg(millrace_torch)]
pub mod drain;
#[cfg(millrace_torch)]
pub mod durable;
pub(crate) mod origin;
#[cfg(millrace_torch)]
mod model;
#[cfg(millrace_torch)]
mod rival;
#[cfg(millrace_torch)]
pub mod generate;
pub mod gateway;
pub mod learn;
pub mod limits;
pub mod lives;
pub mod mechanisms;
mod memory;
pub mod peers;
mod play;
pub mod queue;
pub mod raw;
pub mod recipes;
pub mod scale;
pub mod state;
#[cfg(millrace_torch)]
pub mod train;
#[cfg(millrace_torch)]
pub mod weights;

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The mean and the standard deviation of a sample; 0 of one number.
pub(crate) fn mean_and_deviation(numbers: &[f64]) -> (f64, f64) {
    let mean = numbers.iter().sum::<f64>() / numbers.len().max(1) as f64;
    let squares = numbers.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
    (mean, (squares / (numbers.len().max(2) - 1) as f64).sqrt())
}

/// Prints a table in Markdown, with the commit and the machine; leaves it beside the figures, which go to `out` as JSON.
pub(crate) fn publish(out: &Path, figures: &impl Serialize, table: &str) -> anyhow::Result<()> {
    let page = format!("{}\n\n{table}", origin::origin());
    println!("\n{page}");
    keep(out, figures)?;
    println!("in {}", out.display());
    let path = out.with_extension("md");
    std::fs::write(&path, page).with_context(|| format!("failed to write {}", path.display()))?;
    println!("in {}", path.display());
    Ok(())
}

/// Writes figures as JSON, into a folder that is made where there is none.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn keep(out: &Path, figures: &impl Serialize) -> anyhow::Result<()> {
    if let Some(folder) = out.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let json = serde_json::to_string_pretty(figures)? + "\n";
    std::fs::write(out, json).with_context(|| format!("failed to write {}", out.display()))
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
