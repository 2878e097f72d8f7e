//! One running copy of a program.

use std::io;
use std::os::fd::AsFd;

use futures::future::FusedFuture;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::ProgramError;
use super::line::{Answer, AnswerLine, Offer};
use crate::process_group::ProcessGroup;

/// The version of the protocol that this worker speaks.
const PROTOCOL: u32 = 1;
/// Bytes of a line at most; a longer one is no answer.
const MAX_LINE: u64 = 64 * 1024 * 1024;
/// Bytes of an invalid line that an error shows.
const SHOWN: usize = 200;

/// A process.
#[derive(Debug)]
pub(super) struct Process {
    group: ProcessGroup,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub(super) fn start(command: &str) -> Result<Self, ProgramError> {
        let fail =
            |error: io::Error| ProgramError::Start { command: command.to_owned(), reason: error.to_string() };
        let (group, input, output) =
            ProcessGroup::start(Command::new("sh").args(["-c", &format!("exec {command}")])).map_err(fail)?;
        Ok(Self { group, input, output: BufReader::new(output) })
    }

    pub(super) fn is_alive(&mut self) -> bool {
        self.group.is_alive()
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

    /// The beginning of what it has said and nobody asked for.
    pub(super) async fn unasked(&mut self) -> Option<String> {
        if self.output.buffer().is_empty() && !self.is_readable() {
            return None;
        }
        let said = self.output.fill_buf().await.ok().filter(|said| !said.is_empty())?;
        Some(shown(said.split(|byte| *byte == b'\n').next().unwrap_or_default()))
    }

    /// Whether there is output, by the system: the runtime may not have heard of it yet.
    fn is_readable(&self) -> bool {
        let mut output = [PollFd::new(self.output.get_ref().as_fd(), PollFlags::POLLIN)];
        let polled = poll(&mut output, PollTimeout::ZERO);
        polled.is_ok() && output[0].revents().is_some_and(|events| events.contains(PollFlags::POLLIN))
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
    /// The next one, to the request of this number. Drives `writing` meanwhile, which ends early where
    /// the process reads no more.
    pub(super) async fn next(
        &mut self,
        number: u64,
        writing: &mut (impl FusedFuture<Output = io::Result<()>> + Unpin),
    ) -> Result<Answer, ProgramError> {
        let mut reading = std::pin::pin!(read(self.output));
        loop {
            tokio::select! {
                biased;
                answer = &mut reading => {
                    let (answer, line): (AnswerLine, String) = answer?;
                    return answer.to(number).map_err(|reason| ProgramError::Unreadable { line, reason });
                }
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
    match serde_json::from_slice(&line) {
        Ok(message) => Ok((message, shown(&line))),
        Err(error) => Err(ProgramError::Unreadable { line: shown(&line), reason: error.to_string() }),
    }
}

/// The beginning of a line.
fn shown(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(SHOWN)]).trim_end().to_owned()
}
