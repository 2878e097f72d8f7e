//! One running copy of a program.

use std::io;
use std::process::Stdio;

use futures::future::FusedFuture;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::ProgramError;
use super::line::{Answer, Offer};

/// The version of the protocol that this worker speaks.
const PROTOCOL: u32 = 1;
/// Bytes of a line at most; a longer one is no answer.
const MAX_LINE: u64 = 64 * 1024 * 1024;
/// Bytes of an invalid line that an error shows.
const SHOWN: usize = 200;

/// A process. It is killed on drop, with all processes that it started. When the worker dies, its
/// input ends.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may have ended, with all its processes.
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

impl Process {
    pub(super) fn start(command: &str) -> Result<Self, ProgramError> {
        let fail = |reason: String| ProgramError::Start { command: command.to_owned(), reason };
        let mut child = Command::new("sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Processes that it starts are killed with it.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| fail(error.to_string()))?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (Some(input), Some(output)) = (input, output) else {
            return Err(fail("its input and output are not there".to_owned()));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Reads its offer.
    pub(super) async fn hello(&mut self) -> Result<Offer, ProgramError> {
        let (offer, line): (Offer, String) = read(&mut self.output).await?;
        if offer.protocol != PROTOCOL {
            let reason = format!("millrace={}, and this worker speaks {PROTOCOL}", offer.protocol);
            return Err(ProgramError::Unreadable { line, reason });
        }
        Ok(offer)
    }

    /// Writes `lines`, requests of one line each, while their answers are read: a program may answer
    /// the first before it reads the last, and neither pipe is endless.
    pub(super) fn exchange(&mut self, lines: Vec<u8>) -> (impl Future<Output = io::Result<()>>, Answers<'_>) {
        let (input, output) = (&mut self.input, &mut self.output);
        let writing = async move {
            input.write_all(&lines).await?;
            input.flush().await
        };
        (writing, Answers { output })
    }
}

/// The answers of a process, in the order of the requests.
pub(super) struct Answers<'a> {
    output: &'a mut BufReader<ChildStdout>,
}

impl Answers<'_> {
    /// The next one. Drives `writing` meanwhile, which ends early where the process reads no more.
    pub(super) async fn next(
        &mut self,
        writing: &mut (impl FusedFuture<Output = io::Result<()>> + Unpin),
    ) -> Result<Answer, ProgramError> {
        let mut reading = std::pin::pin!(read(self.output));
        loop {
            tokio::select! {
                biased;
                answer = &mut reading => return Ok(answer?.0),
                written = &mut *writing, if !writing.is_terminated() => written.map_err(|_| ProgramError::Died)?,
            }
        }
    }
}

/// The next line, and its beginning for people.
async fn read<T: DeserializeOwned>(output: &mut BufReader<ChildStdout>) -> Result<(T, String), ProgramError> {
    let mut line = Vec::new();
    let read = output.take(MAX_LINE).read_until(b'\n', &mut line).await;
    if read.is_err() || line.last() != Some(&b'\n') {
        return Err(ProgramError::Died);
    }
    let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).trim_end().to_owned();
    match serde_json::from_slice(&line) {
        Ok(message) => Ok((message, shown)),
        Err(error) => Err(ProgramError::Unreadable { line: shown, reason: error.to_string() }),
    }
}
