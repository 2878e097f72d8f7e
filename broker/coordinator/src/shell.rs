//! The I/O around the fold: reads the log, executes the fold's commands, elects a leader, answers
//! the API.

pub mod shared;
pub mod clock;
pub mod lanes;
pub mod journal;
pub mod audit;
pub mod adopt;
pub mod collect;
pub mod execute;
pub mod leader;
pub mod members;
pub mod gauges;
pub mod traces;
pub mod driver;
pub mod api;
