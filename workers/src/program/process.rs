//! One running copy of a program.

use std::io;

use futures::future::FusedFuture;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::ProgramError;
use super::line::{Answer, Offer};
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
