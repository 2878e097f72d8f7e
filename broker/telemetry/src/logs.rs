//! Log lines on standard error.

use std::io;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object per line, with the span's fields.
    Json,
}

/// Sends log lines to standard error from here on. A second call changes nothing, so tests may call
/// it.
///
/// # Errors
/// `filter` is not a tracing filter.
pub fn init(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("failed to read log filter={filter:?}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // An error means that a subscriber is installed already; it is kept.
    let _ = match format {
        LogFormat::Human => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
    };
    Ok(())
}
