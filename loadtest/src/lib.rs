//! The system seen from outside: what must hold of every run, a simulator, and chaos and benchmarks on real
//! parts.

pub mod command;
pub mod checkers;
pub mod sim;
mod virtual_run;
mod virtual_time;
pub mod bench;
pub mod headlines;
pub mod chaos;
pub mod results;
