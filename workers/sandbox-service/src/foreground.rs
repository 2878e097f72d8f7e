//! A program that talks: it runs in a terminal of its own, in the foreground of a session, over any
//! number of requests. Each request types a line and waits until the program writes what the client
//! expects, or ends.

use std::ops::Range;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use millrace_sandbox::End;
use millrace_sandbox::live::{Event, Exec, LiveError, Process, Terminal, TerminalSize};
use regex::bytes::Regex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};

use crate::session::{Done, OUTPUT_BYTES, SessionError};

/// As ROCK has it.
const TERMINAL: Terminal = Terminal { size: TerminalSize { columns: 80, rows: 24 }, echo: false };
/// Bytes that are kept of what it writes while nobody asks; the latest.
const KEPT_BYTES: usize = 1024 * 1024;
/// Bytes over which what a client expects is found: else each piece would cost a search of all that
/// came before.
const WINDOW_BYTES: usize = 64 * 1024;
/// New bytes of one search at most: with the window they bound how long one takes.
const STEP_BYTES: usize = 16 * 1024;
/// Bytes before the place where a search begins that decide of `^` and `\b`: a character's.
const BEFORE_BYTES: usize = 4;

/// Searches at once, of all sessions: half of the processors. A client chooses what they cost.
static SEARCHES: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, |all| (all.get() / 2).max(1))));

/// Where what is expected begins and ends, if it is there.
type Found = Option<(usize, usize)>;

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
    ///
    /// What it writes is taken also while a search runs, so that no more than the bound is ever kept.
    pub(crate) async fn wait(
        &mut self,
        (line, expect): (&str, &Arc<[Regex]>),
        timeout: Duration,
    ) -> Result<Done, SessionError> {
        let until = Instant::now() + timeout;
        let (mut from, mut to) = (self.written.len(), self.written.len());
        let mut search: Option<BoxFuture<'static, Found>> = None;
        let mut is_long = false;
        loop {
            if search.is_none() && !expect.is_empty() && to < self.written.len() {
                from = from.max(to.saturating_sub(WINDOW_BYTES));
                to = self.written.len().min(to + STEP_BYTES);
                search = Some(search_beside(&self.written, from..to, expect).boxed());
            }
            if search.is_none() {
                if is_long {
                    return Err(SessionError::ForegroundLong);
                }
                if let Some(end) = self.end {
                    let exit_code = Some(code(end)?);
                    return Ok(Done { output: plain(&self.written, line), exit_code, expected: None });
                }
            }
            tokio::select! {
                found = found(&mut search) => {
                    search = None;
                    if let Some((start, end)) = found {
                        let expected = Some(String::from_utf8_lossy(&self.written[start..end]).into_owned());
                        let output = plain(&self.written[..start], line);
                        self.written.drain(..end);
                        return Ok(Done { output, exit_code: None, expected });
                    }
                }
                () = self.take(), if self.end.is_none() => {
                    is_long |= self.written.len() > OUTPUT_BYTES;
                    self.written.truncate(OUTPUT_BYTES);
                }
                () = sleep_until(until) => return Err(SessionError::ForegroundLate(timeout.as_secs())),
            }
        }
    }
}

/// What came of a search; never anything, where there is none.
async fn found(search: &mut Option<BoxFuture<'static, Found>>) -> Found {
    match search {
        Some(search) => search.await,
        None => std::future::pending().await,
    }
}

/// Where the first of what is expected is in a part of what was written. Each pattern is searched on a
/// thread beside the runtime, and other sessions have their turns in between.
fn search_beside(
    written: &[u8],
    part: Range<usize>,
    expect: &Arc<[Regex]>,
) -> impl Future<Output = Found> + use<> {
    let before = part.start.saturating_sub(BEFORE_BYTES);
    let (at, text, expect) =
        (part.start - before, Bytes::copy_from_slice(&written[before..part.end]), Arc::clone(expect));
    async move {
        let mut first: Found = None;
        for n in 0..expect.len() {
            let permit = SEARCHES.acquire().await.ok()?;
            let (text, expect) = (text.clone(), Arc::clone(&expect));
            let search = move || {
                let _permit = permit;
                let found = expect.get(n)?.find_at(&text, at)?;
                Some((found.start(), found.end()))
            };
            let found = spawn_blocking(search).await.ok()?;
            first = first.into_iter().chain(found).min_by_key(|(start, _)| *start);
        }
        first.map(|(start, end)| (before + start, before + end))
    }
}

/// The code as shells have it, where it ended and not the sandbox, or all in it for its memory.
fn code(end: End) -> Result<i32, SessionError> {
    match end {
        End::Exit(_) | End::Signal(_) => Ok(end.code()),
        End::Wall | End::Cpu | End::Output | End::Memory | End::Broke => Err(SessionError::Ended),
    }
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

    async fn find(written: &[u8], part: Range<usize>, expect: &[&str]) -> Found {
        let expect = expect.iter().map(|pattern| Regex::new(pattern).unwrap()).collect();
        search_beside(written, part, &expect).await
    }

    #[tokio::test]
    async fn the_first_of_what_is_expected_counts_and_nothing_before_the_request() {
        assert_eq!(find(b"ab..bba", 2..7, &["b+", "a"]).await, Some((4, 6)));
        assert_eq!(find(b"ab..", 2..4, &["b+", "a"]).await, None);
        assert_eq!(find(b"xa b", 0..4, &["b+", "a"]).await, Some((1, 2)));
        assert_eq!(find(b"xab", 0..3, &["ab", "a"]).await, Some((1, 3)));
        assert_eq!(find(b"xa b", 0..4, &[]).await, None);
    }

    #[tokio::test]
    async fn a_part_is_searched_as_part_of_the_whole() {
        let written = "ä>>> done\n>>> ".as_bytes();
        assert_eq!(find(written, 6..15, &[">>> "]).await, Some((11, 15)));
        assert_eq!(find(written, 6..12, &[">>> "]).await, None);
        assert_eq!(find(written, 6..15, &["(?m)^."]).await, Some((11, 12)), "a line begins with the line");
        assert_eq!(find(written, 8..15, &[r"\b[a-z]"]).await, None, "a word begins with the word");
        assert_eq!(find(written, 6..15, &["^done"]).await, None, "there was something before");
        assert_eq!(find(written, 0..15, &["^ä"]).await, Some((0, 2)));
    }

    #[tokio::test]
    async fn a_search_that_takes_long_holds_up_nothing_else() {
        let expect: Arc<[Regex]> = [Regex::new("a[ab]{300}[^ab]").unwrap()].into();
        // Any bits without a pattern.
        let bits = (1..).scan(1_u32, |bits: &mut u32, _: u32| {
            *bits ^= *bits << 13;
            *bits ^= *bits >> 17;
            *bits ^= *bits << 5;
            Some(if *bits & 1 == 0 { b'a' } else { b'b' })
        });
        let written: Vec<u8> = bits.take(WINDOW_BYTES + STEP_BYTES).collect();
        let mut search = std::pin::pin!(search_beside(&written, 0..written.len(), &expect));
        // This runtime has one thread: had that searched, the search would be over now.
        assert!(futures::poll!(&mut search).is_pending());
        assert_eq!(search.await, None);
    }

    #[test]
    fn a_terminal_is_told_as_text() {
        assert_eq!(plain(b"1+1\r\n\x1b[1;32m2\x1b[0m\r\n", "1+1"), "2");
        assert_eq!(plain(b"\x1b[?2004h one\r\n  two \xff", ""), "one\n  two \u{fffd}");
        assert_eq!(plain(b"", "x"), "");
    }
}
