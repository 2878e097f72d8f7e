//! A user's program beside the worker, in any language. It answers for environments and rewards
//! that Millrace does not have, over its standard input and output, one line of JSON each way
//! (`program/line.rs`). The worker pulls, sends heartbeats, checks staleness and settles as for its
//! own tasks. Copies of the program are stateless, so any of them may get any request, and one that
//! dies is replaced (`program/copies.rs`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_schemas::{PoolName, Stage};
use tokio::time::timeout;

use crate::runtime::{Failure, Retry};

mod process;
mod line;
mod copies;

use copies::Copies;
use line::RequestLine;
pub use line::{Answer, EnvAnswer, Offer, ProgramRequest, Refusal};
use process::Process;

/// Time for the program to send its offer.
const HELLO: Duration = Duration::from_secs(60);

/// Requests of one batch at most, whatever a program offers.
const MAX_BATCH: usize = 1024;

/// A program, and its copies that run.
#[derive(Debug)]
pub struct Program {
    offer: Offer,
    /// Requests so far.
    asked: AtomicU64,
    copies: Copies,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// It does not start.
    #[error("failed to start program={command:?}: {reason}")]
    Start {
        /// The command line.
        command: String,
        /// The error of the system.
        reason: String,
    },
    /// It ended, or closed its output.
    #[error("the program died on the request; its last output is in this worker's log")]
    Died,
    /// It printed a line that is no answer.
    #[error("failed to read the program's answer {line:?}: {reason}; print to the standard error instead")]
    Unreadable {
        /// The line, in part.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It sent no offer in time.
    #[error("program={0:?} did not say what it answers for within 60 s; does it call millrace.serve()?")]
    Silent(String),
}

impl From<ProgramError> for Failure {
    /// A death may be the machine's fault.
    fn from(error: ProgramError) -> Self {
        Self::Retry(Retry::Restart, error.to_string())
    }
}

impl Program {
    /// Starts `command` with the shell and reads its offer. At most `copies` of it will run at once,
    /// and one more for each that is stuck in a request, at most as many again.
    ///
    /// # Errors
    /// It does not start, dies, or sends no valid offer.
    pub async fn start(command: &str, copies: usize) -> Result<Self, ProgramError> {
        let (first, offer) = begin(command).await?;
        let copies = Copies::new(command, first, copies.max(1), offer.batch.clamp(1, MAX_BATCH));
        Ok(Self { offer, asked: AtomicU64::default(), copies })
    }

    /// The pools of a stage that it answers for.
    #[must_use]
    pub fn pools(&self, stage: Stage) -> &[PoolName] {
        match stage {
            Stage::EnvStep => &self.offer.environments,
            Stage::Reward => &self.offer.rewards,
            Stage::Submit | Stage::Generate | Stage::TrainShard | Stage::PublishWeights => &[],
        }
    }

    /// Sends a request to one copy, once one is free. Dropping the future withdraws the request.
    ///
    /// # Errors
    /// The copy died or sent no valid answer; another replaces it.
    pub async fn ask(&self, request: &ProgramRequest<'_>) -> Result<Answer, ProgramError> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let line = RequestLine { request: number, body: request };
        let mut line = serde_json::to_vec(&line).expect("a request has only what JSON can express");
        line.push(b'\n');
        self.copies.ask(number, line).await
    }
}

/// Starts a copy and reads its offer.
async fn begin(command: &str) -> Result<(Process, Offer), ProgramError> {
    let mut copy = Process::start(command)?;
    let silent = |_| ProgramError::Silent(command.to_owned());
    let offer = timeout(HELLO, copy.hello()).await.map_err(silent)??;
    Ok((copy, offer))
}

#[cfg(test)]
mod tests;
