//! A shell that stays: folders and variables of one command are there for the next.
//!
//! One task owns the shell. It consumes what the shell writes and requests to run something; it
//! waits for the shell, at most as long as a request says, and nobody but this session's own
//! requests waits for it. On a timeout all that the shell started is killed, and the session has
//! ended: what it would still have written can never be taken for the output of another command.

use std::time::Duration;

use millrace_sandbox::live::{Event, Exec, LiveError, LiveSandbox, Process};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use uuid::Uuid;

/// Requests of a session that wait for one another.
const QUEUE: usize = 16;
/// Bytes that one command may write; beyond it is as late.
const OUTPUT_BYTES: usize = 16 * 1024 * 1024;

/// A session. It ends with this value.
#[derive(Debug)]
pub(crate) struct Session(mpsc::Sender<Ask>);

#[derive(Debug)]
struct Ask {
    command: String,
    timeout: Duration,
    tell: oneshot::Sender<Result<Done, SessionError>>,
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// Both streams, as they came; what is no UTF-8 is replaced.
    pub(crate) output: String,
    pub(crate) exit_code: i32,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SessionError {
    #[error("the command took longer than {0} s: all that it started was killed, and the session has ended")]
    Late(u64),
    #[error("the command wrote more than 16 MiB: all that it started was killed, and the session has ended")]
    Long,
    #[error("the session has ended; create it again")]
    Ended,
    #[error("the session has 16 commands that wait; wait for them")]
    Full,
    #[error("{0}")]
    Sandbox(#[from] LiveError),
}

impl Session {
    /// Starts a shell.
    pub(crate) async fn start(sandbox: &LiveSandbox, shell: Exec) -> Result<Self, LiveError> {
        // A session may write without end, one command may not.
        let shell = Exec { timeout_ms: None, output_bytes: u64::MAX, ..shell };
        let process = sandbox.spawn(shell).await?;
        process.write(b"exec 2>&1\n").await?;
        let (ask, asked) = mpsc::channel(QUEUE);
        tokio::spawn(serve(process, asked));
        Ok(Self(ask))
    }

    /// Whether it can still run something.
    pub(crate) fn is_alive(&self) -> bool {
        !self.0.is_closed()
    }

    /// Runs a command. Dropping the future leaves the command running until its timeout.
    pub(crate) async fn run(&self, command: &str, timeout: Duration) -> Result<Done, SessionError> {
        let (tell, told) = oneshot::channel();
        let ask = Ask { command: command.to_owned(), timeout, tell };
        self.0.try_send(ask).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SessionError::Full,
            mpsc::error::TrySendError::Closed(_) => SessionError::Ended,
        })?;
        told.await.map_err(|_| SessionError::Ended)?
    }
}

async fn serve(mut shell: Process, mut asked: mpsc::Receiver<Ask>) {
    loop {
        tokio::select! {
            event = shell.next() => match event {
                // What the background writes between commands belongs to none.
                Event::Out(_) | Event::Err(_) => {}
                Event::Ended { .. } => return,
            },
            ask = asked.recv() => {
                let Some(Ask { command, timeout, tell }) = ask else { return };
                let done = run(&mut shell, &command, timeout).await;
                let ended = done.is_err() || shell_has_ended(&done);
                let _ = tell.send(done.map(|(done, _)| done));
                if ended {
                    // Dropping the shell kills all of it.
                    return;
                }
            }
        }
    }
}

fn shell_has_ended(done: &Result<(Done, bool), SessionError>) -> bool {
    matches!(done, Ok((_, true)))
}

/// Runs one command; says whether the shell itself ended with it.
async fn run(shell: &mut Process, command: &str, timeout: Duration) -> Result<(Done, bool), SessionError> {
    let mark = Uuid::now_v7().simple().to_string();
    // It has no input: it would read what is meant for the shell.
    let quoted = command.replace('\'', r"'\''");
    shell.write(format!("eval '{quoted}' </dev/null\nprintf '\\n{mark} %d\\n' $?\n").as_bytes()).await?;
    let until = Instant::now() + timeout;
    let (mut output, mut seen) = (Vec::new(), 0);
    loop {
        let event = tokio::select! {
            event = shell.next() => event,
            () = sleep_until(until) => return Err(SessionError::Late(timeout.as_secs())),
        };
        match event {
            Event::Out(bytes) | Event::Err(bytes) => output.extend(bytes),
            Event::Ended { end: millrace_sandbox::End::Exit(code), .. } => {
                return Ok((Done { output: text(&output), exit_code: code }, true));
            }
            Event::Ended { .. } => return Err(SessionError::Ended),
        }
        if let Some((end, exit_code)) = find(&output[seen..], &mark) {
            return Ok((Done { output: text(&output[..seen + end]), exit_code }, false));
        }
        seen = output.len().saturating_sub(mark.len() + 20);
        if output.len() > OUTPUT_BYTES {
            return Err(SessionError::Long);
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Where the line with the mark begins, and the code in it.
fn find(output: &[u8], mark: &str) -> Option<(usize, i32)> {
    let start = format!("\n{mark} ");
    let at = output.windows(start.len()).position(|window| window == start.as_bytes())?;
    let rest = &output[at + start.len()..];
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    Some((at, std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn the_mark_is_found_once_its_line_is_whole() {
        assert_eq!(find(b"out\nM 0\n", "M"), Some((3, 0)));
        assert_eq!(find(b"\nM 127\nmore", "M"), Some((0, 127)));
        assert_eq!(find(b"out\nM 12", "M"), None);
        assert_eq!(find(b"M 0\n", "M"), None);
        assert_eq!(find(b"", "M"), None);
    }
}
