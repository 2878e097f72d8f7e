//! A program of one's own beside the worker: it answers for environments and rewards that Millrace does not have, in
//! any language, over its standard input and output, a line of JSON each way (`program/line.rs` says which). The worker
//! pulls, keeps alive, checks staleness, and settles as for its own; the program only thinks. Copies of it are as
//! stateless as the worker: any of them may be asked anything, and one that dies is replaced.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millrace_schemas::{PoolName, Stage};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::runtime::Verdict;

mod process;
mod line;

pub use line::{Answer, EnvAnswer, Offer, ProgramRequest, Refusal};
use process::Process;

/// For how long a task is given back on which the program died.
const RETRY: Duration = Duration::from_secs(1);
/// Until the program says what it answers for.
const HELLO: Duration = Duration::from_secs(60);

/// A program, and its copies that run.
#[derive(Debug)]
pub struct Program {
    command: String,
    offer: Offer,
    /// Copies that nobody asks anything just now.
    idle: Mutex<Vec<Process>>,
    copies: Semaphore,
}

/// Why a program gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// It does not start.
    #[error("failed to start program={command:?}: {reason}")]
    Start {
        /// The command line.
        command: String,
        /// What the system said.
        reason: String,
    },
    /// It ended, or closed its output.
    #[error("the program died on the question; its last words are in this worker's log")]
    Died,
    /// It said what is no answer.
    #[error("failed to read the program's answer {line:?}: {reason}; print to the standard error instead")]
    Unreadable {
        /// What it said, in part.
        line: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It has not said what it answers for.
    #[error("program={0:?} did not say what it answers for within 60 s; does it call millrace.serve()?")]
    Silent(String),
}

impl Program {
    /// Starts `command` by the shell and hears what it answers for. At most `copies` of it will run at once.
    ///
    /// # Errors
    /// It does not start, dies, or says something else.
    pub async fn start(command: &str, copies: usize) -> Result<Self, ProgramError> {
        let (first, offer) = begin(command).await?;
        let (command, idle) = (command.to_owned(), Mutex::new(vec![first]));
        Ok(Self { command, offer, idle, copies: Semaphore::new(copies.max(1)) })
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

    /// Asks one copy. Waits until one is free. Dropping the future kills the copy that was asked: what it still thinks
    /// about is of no use.
    ///
    /// # Errors
    /// The copy died or said what is no answer; another takes its place.
    pub async fn ask(&self, question: &ProgramRequest<'_>) -> Result<Answer, ProgramError> {
        let _turn = self.copies.acquire().await.expect("nobody closes the semaphore");
        let mut copy = match self.take() {
            Some(copy) => copy,
            None => begin(&self.command).await?.0,
        };
        let answer = copy.ask(question).await?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(copy);
        Ok(answer)
    }

    /// The verdict of a question that has no answer: a death may be the machine's fault.
    #[must_use]
    pub fn verdict(error: &ProgramError) -> Verdict {
        Verdict::RetryAfter(RETRY, error.to_string())
    }

    /// A copy that is idle. One that died while nobody asked it anything is let go of.
    fn take(&self) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        std::iter::from_fn(|| idle.pop()).find_map(|mut copy| copy.is_alive().then_some(copy))
    }
}

/// Starts a copy and hears what it answers for.
async fn begin(command: &str) -> Result<(Process, Offer), ProgramError> {
    let mut copy = Process::start(command)?;
    let silent = |_| ProgramError::Silent(command.to_owned());
    let offer = timeout(HELLO, copy.hello()).await.map_err(silent)??;
    Ok((copy, offer))
}
