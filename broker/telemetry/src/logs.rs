//! Log lines on standard error.

use std::io;

use anyhow::Context;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Human,
    /// One JSON object a line, the span's fields in it.
    Json,
}

/// Sends log lines to standard error from here on. A second call changes nothing, so tests may call it.
///
/// # Errors
/// `filter` is no tracing filter.
pub fn init(format: LogFormat, filter: &str) -> anyhow::Result<()> {
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("failed to read log filter={filter:?}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // An error says that somebody was first; their choice stands.
    let _ = match format {
        LogFormat::Human => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
    };
    Ok(())
}
