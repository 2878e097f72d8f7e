//! The system seen from outside: benchmarks on real parts.

pub mod bench;
