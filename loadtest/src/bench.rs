//! Benchmarks: commands that print figures, with what they are compared with run beside them.

pub mod cpu;
pub mod lives;
pub mod queue;
pub mod raw;
