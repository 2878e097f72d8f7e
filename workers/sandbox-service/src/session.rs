//! A shell that stays: folders and variables of one command are there for the next.
//!
//! One task owns the shell. It consumes what the shell writes and requests to run something; it
//! waits for the shell, at most as long as a request says, and nobody but this session's own
//! requests waits for it. On a timeout all that the shell started is killed, and the session has
//! ended: what it would still have written can never be taken for the output of another command.
//! A program that talks is beside the shell (`foreground.rs`); one that is late is killed alone.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use millrace_sandbox::live::{Event, Exec, LiveError, LiveSandbox, Process};
use regex::bytes::Regex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

use crate::foreground::Foreground;

/// Requests of a session that wait for one another.
const QUEUE: usize = 16;
/// Bytes that one command may write; beyond it is as late.
pub(crate) const OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of the line behind a command at most, besides its mark: three numbers.
const MARK_BYTES: usize = 40;

/// Where a shell stands, as lines for another.
const PLACE: &str = r#"export -p; printf 'cd -- %q\n' "$PWD""#;
/// What a shell may take to say so.
const PLACE_TIMEOUT: Duration = Duration::from_secs(10);

/// A session. It ends with this value.
#[derive(Debug)]
pub(crate) struct Session {
    ask: mpsc::Sender<Ask>,
    known: Arc<Known>,
}

/// What is known of a session without asking it.
#[derive(Debug, Default)]
struct Known {
    /// Requests that wait or run.
    asks: AtomicUsize,
    /// Whether a program is in the foreground.
    talks: AtomicBool,
    shell: OnceLock<Shell>,
}

/// A shell as the sandbox's own numbers name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shell {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
}

/// A line to run, or to type where a program is in the foreground.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) text: String,
    /// Whether it starts a program that talks, in a terminal.
    pub(crate) talks: bool,
    /// What such a program writes when it waits for the next line.
    pub(crate) expect: Arc<[Regex]>,
    pub(crate) timeout: Duration,
}

#[derive(Debug)]
struct Ask {
    line: Line,
    tell: oneshot::Sender<Result<Done, SessionError>>,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Both streams, as they came; what is no UTF-8 is replaced.
    pub(crate) output: String,
    /// `None`: it goes on, in the foreground.
    pub(crate) exit_code: Option<i32>,
    /// What came of all that was expected.
    pub(crate) expected: Option<String>,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("the command took longer than {0} s: all that it started was killed, and the session has ended")]
    Late(u64),
    #[error("the command wrote more than 16 MiB: all that it started was killed, and the session has ended")]
    Long,
    #[error(
        "the program in the foreground took longer than {0} s to say what is expected: it was killed, the session goes on"
    )]
    ForegroundLate(u64),
    #[error("the program in the foreground wrote more than 16 MiB: it was killed, the session goes on")]
    ForegroundLong,
    #[error("the session has ended; create it again")]
    Ended,
    #[error("the session has 16 commands that wait; wait for them")]
    Full,
    #[error("{0}")]
    Sandbox(#[from] LiveError),
}

impl SessionError {
    /// Whether the session is over by it. A program that talks is not the shell.
    const fn ends_it(&self) -> bool {
        use LiveError::{Failed, Invalid};
        !matches!(
            self,
            Self::ForegroundLate(_) | Self::ForegroundLong | Self::Sandbox(Failed(_) | Invalid { .. })
        )
    }
}

impl Session {
    /// Starts a shell.
    pub(crate) async fn start(sandbox: &LiveSandbox, shell: Exec) -> Result<Self, LiveError> {
        // A session may write without end, one command may not.
        let shell = Exec { timeout_ms: None, output_bytes: u64::MAX, ..shell };
        let process = sandbox.spawn(shell).await?;
        process.write(b"exec 2>&1\n").await?;
        let (ask, asked) = mpsc::channel(QUEUE);
        let known = Arc::new(Known::default());
        tokio::spawn(serve(process, asked, Arc::clone(&known)));
        Ok(Self { ask, known })
    }

    /// Whether it can still run something.
    pub(crate) fn is_alive(&self) -> bool {
        !self.ask.is_closed()
    }

    /// Whether no request waits for it and nothing is in its foreground.
    pub(crate) fn is_idle(&self) -> bool {
        self.known.asks.load(Ordering::Acquire) == 0 && !self.known.talks.load(Ordering::Acquire)
    }

    /// Its shell. `None`: it has not run a command yet.
    pub(crate) fn shell(&self) -> Option<Shell> {
        self.known.shell.get().copied()
    }

    /// Runs a line. Dropping the future leaves it running until its timeout.
    pub(crate) async fn run(&self, line: Line) -> Result<Done, SessionError> {
        let (tell, told) = oneshot::channel();
        // Before it is sent: else it could be done before it is counted.
        self.known.asks.fetch_add(1, Ordering::AcqRel);
        self.ask.try_send(Ask { line, tell }).map_err(|error| {
            self.known.asks.fetch_sub(1, Ordering::AcqRel);
            match error {
                mpsc::error::TrySendError::Full(_) => SessionError::Full,
                mpsc::error::TrySendError::Closed(_) => SessionError::Ended,
            }
        })?;
        told.await.map_err(|_| SessionError::Ended)?
    }
}

async fn serve(mut shell: Process, mut asked: mpsc::Receiver<Ask>, known: Arc<Known>) {
    let mut foreground: Option<Foreground> = None;
    loop {
        tokio::select! {
            // What the background writes between commands belongs to none.
            () = discard(&mut shell) => return,
            () = heard(&mut foreground), if foreground.is_some() => {
                foreground.take_if(|program| program.has_ended());
                known.talks.store(foreground.is_some(), Ordering::Release);
            }
            ask = asked.recv() => {
                let Some(Ask { line, tell }) = ask else { return };
                let done = if line.talks || foreground.is_some() {
                    talk(&mut shell, &known, &mut foreground, &line).await
                } else {
                    run(&mut shell, &known, &line.text, line.timeout).await
                };
                let ended = done.as_ref().map_or_else(SessionError::ends_it, |(_, ended)| *ended);
                known.talks.store(foreground.is_some(), Ordering::Release);
                known.asks.fetch_sub(1, Ordering::AcqRel);
                let _ = tell.send(done.map(|(done, _)| done));
                if ended {
                    // Dropping the shell kills all of it.
                    return;
                }
            }
        }
    }
}

/// Throws away what the shell and its background write, until the shell ends.
async fn discard(shell: &mut Process) {
    while !matches!(shell.next().await, Event::Ended { .. }) {}
}

/// What the program in the foreground writes while nobody asks.
async fn heard(foreground: &mut Option<Foreground>) {
    if let Some(program) = foreground {
        program.collect().await;
    }
}

/// What came of a line, and whether the shell itself ended with it.
type Ran = Result<(Done, bool), SessionError>;

/// Types a line for the program in the foreground, or starts one by it.
async fn talk(shell: &mut Process, known: &Known, foreground: &mut Option<Foreground>, line: &Line) -> Ran {
    let (mut program, typed) = if let Some(program) = foreground.take() {
        (program, true)
    } else {
        let (place, ended) = run(shell, known, PLACE, PLACE_TIMEOUT).await?;
        if ended {
            return Err(SessionError::Ended);
        }
        (Foreground::start(shell, &place.output, &line.text).await?, false)
    };
    let told = async {
        if typed {
            program.type_line(&line.text).await?;
        }
        program.wait((&line.text, &line.expect), line.timeout).await
    };
    let done = tokio::select! {
        done = told => done?,
        // What the background writes meanwhile is kept for nobody.
        () = discard(shell) => return Err(SessionError::Ended),
    };
    if !program.has_ended() {
        *foreground = Some(program);
    }
    Ok((done, false))
}

/// Runs one command.
async fn run(shell: &mut Process, known: &Known, command: &str, timeout: Duration) -> Ran {
    let mark = Uuid::now_v7().simple().to_string();
    // It has no input: it would read what is meant for the shell.
    let quoted = command.replace('\'', r"'\''");
    let line = format!("eval '{quoted}' </dev/null\nprintf '\\n{mark} %d %d %d\\n' $? $$ $PPID\n");
    shell.write(line.as_bytes()).await?;
    let until = Instant::now() + timeout;
    let (mut output, mut seen) = (Vec::new(), 0);
    let done = |output: &[u8], code| Done { output: text(output), exit_code: Some(code), expected: None };
    loop {
        let event = tokio::select! {
            event = shell.next() => event,
            () = sleep_until(until) => return Err(SessionError::Late(timeout.as_secs())),
        };
        match event {
            Event::Out(bytes) | Event::Err(bytes) => output.extend(bytes),
            Event::Ended { end: millrace_sandbox::End::Exit(code), .. } => {
                return Ok((done(&output, code), true));
            }
            Event::Ended { .. } => return Err(SessionError::Ended),
        }
        if let Some(Mark { at, exit_code, shell }) = find(&output[seen..], &mark) {
            known.shell.get_or_init(|| shell);
            return Ok((done(&output[..seen + at], exit_code), false));
        }
        seen = output.len().saturating_sub(mark.len() + MARK_BYTES);
        if output.len() > OUTPUT_BYTES {
            return Err(SessionError::Long);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The line behind a command.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    /// Where it begins.
    at: usize,
    exit_code: i32,
    shell: Shell,
}

fn find(output: &[u8], mark: &str) -> Option<Mark> {
    let start = format!("\n{mark} ");
    let at = output.windows(start.len()).position(|window| window == start.as_bytes())?;
    let rest = &output[at + start.len()..];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let mut numbers = std::str::from_utf8(&rest[..end]).ok()?.split(' ');
    let exit_code = numbers.next()?.parse().ok()?;
    let (pid, parent) = (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?);
    Some(Mark { at, exit_code, shell: Shell { pid, parent } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_once_its_line_is_whole() {
        let found = |output: &[u8]| find(output, "M").map(|mark| (mark.at, mark.exit_code));
        assert_eq!(found(b"out\nM 0 5 4\n"), Some((3, 0)));
        assert_eq!(found(b"\nM 127 5 4\nmore"), Some((0, 127)));
        assert_eq!(find(b"\nM 1 5 4\n", "M").map(|mark| mark.shell), Some(Shell { pid: 5, parent: 4 }));
        assert_eq!(found(b"out\nM 12 5"), None);
        assert_eq!(found(b"M 0 5 4\n"), None);
        assert_eq!(found(b""), None);
    }
}
