//! A program that talks: it runs in a terminal of its own, in the foreground of a session, over any
//! number of requests. Each request types a line and waits until the program writes what the client
//! expects, or ends.

use std::time::Duration;

use millrace_sandbox::End;
use millrace_sandbox::live::{Event, Exec, LiveError, Process, Terminal, TerminalSize};
use regex::bytes::Regex;
use tokio::time::{Instant, sleep_until};

use crate::session::{Done, OUTPUT_BYTES, SessionError};

/// As ROCK has it.
const TERMINAL: Terminal = Terminal { size: TerminalSize { columns: 80, rows: 24 }, echo: false };
/// Bytes that are kept of what it writes while nobody asks; the latest.
const KEPT_BYTES: usize = 1024 * 1024;
/// Bytes over which what a client expects is found: else each piece would cost a search of all that
/// came before.
const WINDOW_BYTES: usize = 64 * 1024;

/// A program that talks. Dropping it kills it.
pub(crate) struct Foreground {
    process: Process,
    /// What it wrote since the last answer.
    written: Vec<u8>,
    end: Option<End>,
}

impl Foreground {
    /// Starts a line of a shell that stands where `shell` does. `place` says so: lines of shell.
    pub(crate) async fn start(shell: &Process, place: &str, line: &str) -> Result<Self, LiveError> {
        let script = format!("{place}\n{line}");
        let exec = Exec {
            timeout_ms: None,
            output_bytes: u64::MAX,
            terminal: Some(TERMINAL),
            ..Exec::new(["/bin/bash", "--norc", "--noprofile", "-c", &script])
        };
        Ok(Self { process: shell.spawn_beside(exec).await?, written: Vec::new(), end: None })
    }

    /// Whether it has ended.
    pub(crate) const fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Takes what it writes while nobody asks. Not to be called once it has ended.
    pub(crate) async fn collect(&mut self) {
        self.take().await;
        let old = self.written.len().saturating_sub(KEPT_BYTES);
        self.written.drain(..old);
    }

    async fn take(&mut self) {
        match self.process.next().await {
            Event::Out(bytes) | Event::Err(bytes) => self.written.extend(bytes),
            Event::Ended { end, .. } => self.end = Some(end),
        }
    }

    /// Types a line.
    pub(crate) async fn type_line(&self, line: &str) -> Result<(), LiveError> {
        self.process.write(format!("{line}\n").as_bytes()).await
    }

    /// Waits until it writes one of these, or ends. What it wrote before this is told, and is not
    /// what is waited for. On an error it has to be dropped.
    pub(crate) async fn wait(
        &mut self,
        (line, expect): (&str, &[Regex]),
        timeout: Duration,
    ) -> Result<Done, SessionError> {
        let until = Instant::now() + timeout;
        let mut searched = self.written.len();
        loop {
            tokio::select! {
                () = self.take() => {}
                () = sleep_until(until) => return Err(SessionError::ForegroundLate(timeout.as_secs())),
            }
            if let Some(end) = self.end {
                let exit_code = Some(code(end)?);
                return Ok(Done { output: plain(&self.written, line), exit_code, expected: None });
            }
            if let Some((from, to)) = find(&self.written, searched, expect) {
                let expected = Some(String::from_utf8_lossy(&self.written[from..to]).into_owned());
                let output = plain(&self.written[..from], line);
                self.written.drain(..to);
                return Ok(Done { output, exit_code: None, expected });
            }
            if self.written.len() > OUTPUT_BYTES {
                return Err(SessionError::ForegroundLong);
            }
            searched = searched.max(self.written.len().saturating_sub(WINDOW_BYTES));
        }
    }
}

/// The code as shells have it, where it ended and not the sandbox, or all in it for its memory.
fn code(end: End) -> Result<i32, SessionError> {
    match end {
        End::Exit(_) | End::Signal(_) => Ok(end.code()),
        End::Wall | End::Cpu | End::Output | End::Memory | End::Broke => Err(SessionError::Ended),
    }
}

/// Where the first of what is expected is, from `at` on.
fn find(written: &[u8], at: usize, expect: &[Regex]) -> Option<(usize, usize)> {
    let found = expect.iter().filter_map(|pattern| pattern.find_at(written, at));
    found.min_by_key(|found| found.start()).map(|found| (found.start(), found.end()))
}

/// What a terminal showed, as text: no colours, no echo of the line that was typed.
fn plain(bytes: &[u8], line: &str) -> String {
    let text = String::from_utf8_lossy(bytes).replace("\r\n", "\n");
    let text = anstream::adapter::strip_str(&text).to_string();
    let text = text.trim_start();
    text.strip_prefix(line).unwrap_or(text).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_what_is_expected_counts_and_nothing_before_the_request() {
        let expect = ["b+", "a"].map(|pattern| Regex::new(pattern).unwrap());
        assert_eq!(find(b"ab..bba", 2, &expect), Some((4, 6)));
        assert_eq!(find(b"ab..", 2, &expect), None);
        assert_eq!(find(b"xa b", 0, &expect), Some((1, 2)));
        assert_eq!(find(b"xa b", 0, &[]), None);
    }

    #[test]
    fn a_terminal_is_told_as_text() {
        assert_eq!(plain(b"1+1\r\n\x1b[1;32m2\x1b[0m\r\n", "1+1"), "2");
        assert_eq!(plain(b"\x1b[?2004h one\r\n  two \xff", ""), "one\n  two \u{fffd}");
        assert_eq!(plain(b"", "x"), "");
    }
}
