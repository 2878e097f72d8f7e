//! Formatting for people.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};

/// Writes a line to standard output. A closed pipe, of `head` for example, is not an error.
pub(super) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Writes a line to standard error: a remark beside the output, which programs may read.
pub(super) fn remark(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Whether the reader of an output closed its pipe, as `head` does: that is no failure.
pub(super) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let closed = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    };
    error.chain().any(closed)
}

/// Whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// `0.347` as `34.7 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// `12345` as `12,345`.
pub(super) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `75` seconds as `1m15s`.
pub(super) fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match (s / 3600, s / 60 % 60, s % 60) {
        (0, 0, s) => format!("{s}s"),
        (0, m, s) => format!("{m}m{s:02}s"),
        (h, m, _) => format!("{h}h{m:02}m"),
    }
}

/// `stale 3, filtered 40`, or `none`.
pub(super) fn by_reason(counts: &BTreeMap<String, u64>) -> String {
    let parts = counts.iter().filter(|(_, n)| **n > 0);
    let parts: Vec<String> = parts.map(|(reason, n)| format!("{reason} {}", thousands(*n))).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

/// `0: 78.2 %, 1: 21.8 %` of what was trained, or `none`.
pub(super) fn histogram(staleness: &[u64]) -> String {
    let all: u64 = staleness.iter().sum();
    let parts = staleness.iter().enumerate().filter(|(_, n)| **n > 0);
    let parts: Vec<String> =
        parts.map(|(at, n)| format!("{at}: {}", percent(*n as f64 / all as f64))).collect();
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            ["0", "999", "1,000", "12,345,678"],
            [0, 999, 1_000, 12_345_678].map(thousands).each_ref().map(String::as_str)
        );
        assert_eq!(duration(75.2), "1m15s");
        assert_eq!(duration(3_725.0), "1h02m");
        assert_eq!(histogram(&[3, 1, 0]), "0: 75.0 %, 1: 25.0 %");
        assert_eq!(by_reason(&[("stale".into(), 2), ("failed".into(), 0)].into()), "stale 2");
    }
}
