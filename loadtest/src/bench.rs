//! Benchmarks: commands that print figures, with what they are compared with run beside them.

pub mod cpu;
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
