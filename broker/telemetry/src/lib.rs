//! Logs, traces, metrics and health of every process, the same way.
//!
//! A binary flattens [`TelemetryArgs`] into its arguments, calls [`TelemetryArgs::start`] once, and
//! keeps the returned [`Telemetry`]: the health to set, the tracer to report to, and the address of
//! `/metrics` and `/healthz`.

pub mod args;
pub mod logs;
pub mod trace;
pub mod spans;
mod otlp;
pub mod health;
pub mod http;

pub use args::{Telemetry, TelemetryArgs};
pub use health::Health;
pub use logs::LogFormat;
pub use spans::Tracer;
pub use trace::TraceParent;
