//! Log lines on standard error.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};

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
    let ansi = has_colours(io::stderr().is_terminal(), std::env::var_os("NO_COLOR").as_deref());
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(ansi);
    // An error means that a subscriber is installed already; it is kept.
    let _ = match format {
        LogFormat::Human => lines.with_target(false).try_init(),
        LogFormat::Json => lines.json().flatten_event(true).with_span_list(false).try_init(),
    };
    Ok(())
}

/// Whether lines have colours: in a file or a pipe they would hide words from a search. `no_color` is
/// the variable of <https://no-color.org>.
fn has_colours(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_terminal_that_allows_it_has_colours() {
        for (is_terminal, no_color, expected) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (false, None, false),
            (false, Some(""), false),
        ] {
            assert_eq!(has_colours(is_terminal, no_color.map(OsStr::new)), expected, "{no_color:?}");
        }
    }
}
