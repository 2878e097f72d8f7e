//! The program that plays one environment: in a sandbox, asked by lines of JSON and answering by
//! lines of JSON, as `millrace.serve()` of `workers/python` does.
//!
//! One task owns the program. It consumes requests and what the program writes, at any moment, so
//! that a program which writes much never waits; it waits for an answer at most as long as a request
//! says, and nobody but that request waits for it. A program that is late, writes without end or
//! writes no answer has ended, and the environment with it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use millrace_sandbox::live::{Event, Exec, LiveError, LiveSandbox, Process};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, OwnedSemaphorePermit, mpsc, oneshot};
use tokio::time::{Instant, sleep_until};

/// Time for the program to say what it offers.
const HELLO: Duration = Duration::from_secs(60);
/// How much later than the program itself the service ends a request that takes too long: the program
/// says where it hangs, and a program in native code says nothing.
const LATER: Duration = Duration::from_secs(5);
/// Bytes of an answer at most. The package itself sends less than 1 MiB, 4 where each byte is escaped.
const LINE_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that a program may write in all its life; most of it is read and dropped.
const OUTPUT_BYTES: u64 = 1 << 30;
/// Bytes of its errors that are kept, for people.
const ERRORS_KEPT: usize = 2_048;
/// The version of the protocol.
const PROTOCOL: u64 = 1;

/// A program that plays. It ends with its sandbox, or with this value.
#[derive(Debug)]
pub(crate) struct Player {
    ask: mpsc::Sender<Ask>,
    turn: Arc<AsyncMutex<Turn>>,
    step: Duration,
    /// What it wrote last before it ended.
    last: Arc<OnceLock<String>>,
    room: Mutex<Option<OwnedSemaphorePermit>>,
}

/// What an environment waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Made,
    Playing,
    Terminated,
    Truncated,
    Failed,
}

impl Turn {
    /// Why there is no step now.
    pub(super) const fn why_not(self) -> Option<&'static str> {
        match self {
            Self::Playing => None,
            Self::Made => Some("no episode has begun: reset the environment first"),
            Self::Terminated => Some("the episode has terminated: reset the environment first"),
            Self::Truncated => Some("the episode was truncated: reset the environment first"),
            Self::Failed => Some("the episode failed: reset the environment first"),
        }
    }
}

#[derive(Debug)]
struct Ask {
    line: String,
    timeout: Duration,
    tell: oneshot::Sender<Result<Value, PlayError>>,
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlayError {
    #[error("the environment failed: {0}")]
    Refused(String),
    #[error("the environment gave no answer within {0} s, and was ended")]
    Late(u64),
    #[error("the environment answered with more than 8 MiB, and was ended")]
    Long,
    #[error("the environment's program has ended; its last output: {0:?}")]
    Died(String),
    #[error("the environment's program wrote what is no answer, and was ended: {0}")]
    Unreadable(String),
    #[error("{0}")]
    Sandbox(#[from] LiveError),
}

impl PlayError {
    /// Why the environment is over with this; `None`: it can be reset.
    pub(super) const fn why_over(&self) -> Option<&'static str> {
        match self {
            Self::Refused(_) => None,
            Self::Late(_) => Some("its program gave no answer in time"),
            Self::Died(_) | Self::Sandbox(_) => Some("its program has ended"),
            Self::Long | Self::Unreadable(_) => Some("its program wrote what is no answer"),
        }
    }

    /// An answer as what it shall be.
    pub(super) fn read<T: DeserializeOwned>(told: Value) -> Result<T, Self> {
        serde_json::from_value(told).map_err(|error| Self::Unreadable(error.to_string()))
    }
}

/// What the program answers.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Told {
    Live(Value),
    Refused { reason: String },
}

impl Player {
    /// Starts the program and waits until it says what it offers.
    pub(super) async fn start(
        sandbox: &LiveSandbox,
        command: &str,
        step: Duration,
    ) -> Result<Self, PlayError> {
        let exec = Exec::new(["/bin/sh", "-c", &format!("exec {command}")]);
        let env = [("MILLRACE_STEP_SECONDS".to_owned(), step.as_secs_f64().to_string())].into();
        let exec = Exec { timeout_ms: None, output_bytes: OUTPUT_BYTES, env, ..exec };
        let process = sandbox.spawn(exec).await?;
        let mut program = Program { process, rest: Vec::new(), errors: Vec::new() };
        let offer = program.line(HELLO).await?;
        if offer.get("millrace").and_then(Value::as_u64) != Some(PROTOCOL) {
            let wrong = format!("millrace=1 is expected, and it says {:.200}", offer.to_string());
            return Err(PlayError::Unreadable(wrong));
        }
        // One request is under way at a time; `turn` sees to that.
        let (ask, asked) = mpsc::channel(1);
        let last = Arc::new(OnceLock::new());
        tokio::spawn(serve(program, asked, Arc::clone(&last)));
        let turn = Arc::new(AsyncMutex::new(Turn::Made));
        Ok(Self { ask, turn, step, last, room: Mutex::default() })
    }

    /// Keeps this permit as long as there is this environment.
    pub(super) fn keep(&self, room: OwnedSemaphorePermit) {
        *self.room.lock().unwrap_or_else(PoisonError::into_inner) = Some(room);
    }

    /// The right to ask; `None`: somebody has it.
    pub(super) fn turn(&self) -> Option<OwnedMutexGuard<Turn>> {
        Arc::clone(&self.turn).try_lock_owned().ok()
    }

    /// Sends a request and waits for its answer.
    pub(super) async fn ask(&self, line: &Value) -> Result<Value, PlayError> {
        let (tell, told) = oneshot::channel();
        let died = || PlayError::Died(self.last.get().cloned().unwrap_or_default());
        let ask = Ask { line: format!("{line}\n"), timeout: self.step + LATER, tell };
        self.ask.send(ask).await.map_err(|_| died())?;
        told.await.map_err(|_| died())?
    }
}

async fn serve(mut program: Program, mut asked: mpsc::Receiver<Ask>, last: Arc<OnceLock<String>>) {
    loop {
        tokio::select! {
            // What it writes between two requests is no answer.
            event = program.process.next() => if program.take(event).is_err() { break },
            ask = asked.recv() => {
                let Some(Ask { line, timeout, tell }) = ask else { break };
                let told = program.ask(&line, timeout).await;
                let is_over = told.as_ref().is_err_and(|error| error.why_over().is_some());
                let _ = tell.send(told);
                if is_over {
                    break;
                }
            }
        }
    }
    // Set before the channel closes, on which those who ask look here. Dropping the program kills it.
    let _ = last.set(program.last_words());
}

struct Program {
    process: Process,
    /// What it wrote and nobody took yet.
    rest: Vec<u8>,
    errors: Vec<u8>,
}

impl Program {
    async fn ask(&mut self, line: &str, timeout: Duration) -> Result<Value, PlayError> {
        self.rest.clear();
        self.process.write(line.as_bytes()).await?;
        let told = self.line(timeout).await?;
        match PlayError::read(told)? {
            Told::Live(told) => Ok(told),
            Told::Refused { reason } => Err(PlayError::Refused(reason)),
        }
    }

    /// The next line that it writes.
    async fn line(&mut self, timeout: Duration) -> Result<Value, PlayError> {
        let until = Instant::now() + timeout;
        let mut looked = 0;
        loop {
            if let Some(end) = self.rest[looked..].iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=looked + end).collect();
                return serde_json::from_slice(&line).map_err(|error| {
                    let begin = String::from_utf8_lossy(&line[..line.len().min(200)]).into_owned();
                    PlayError::Unreadable(format!("{begin:?}: {error}"))
                });
            }
            looked = self.rest.len();
            if looked > LINE_BYTES {
                return Err(PlayError::Long);
            }
            let event = tokio::select! {
                event = self.process.next() => event,
                () = sleep_until(until) => return Err(PlayError::Late(timeout.as_secs())),
            };
            self.take(event)?;
        }
    }

    fn take(&mut self, event: Event) -> Result<(), PlayError> {
        match event {
            Event::Out(bytes) => {
                // More than one answer may be is not kept; `line` fails on it.
                let room = (LINE_BYTES + 1).saturating_sub(self.rest.len());
                self.rest.extend(bytes.into_iter().take(room));
            }
            Event::Err(bytes) => {
                self.errors.extend(bytes);
                let old = self.errors.len().saturating_sub(ERRORS_KEPT);
                self.errors.drain(..old);
            }
            Event::Ended { .. } => return Err(PlayError::Died(self.last_words())),
        }
        Ok(())
    }

    fn last_words(&self) -> String {
        String::from_utf8_lossy(&self.errors).trim().to_owned()
    }
}
