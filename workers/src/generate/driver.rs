//! The thread that owns the engines, one for each run. Their weights are read beside it.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millrace_policy::{LoadedVersion, PolicyError, ReadyWeights};
use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_schemas::{PolicyVersion, RolloutId, RunId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::follow::Serving;
use crate::runtime::Tenant;
use engines::Engines;

mod engines;
mod host;

/// A turn to sample.
pub(super) struct Request {
    pub(super) rollout: RolloutId,
    pub(super) task: GenerateTask,
    /// Fires when the turn is no longer needed.
    pub(super) cancel: CancellationToken,
    /// Fires when the turn must end with what was sampled.
    pub(super) leaving: CancellationToken,
    pub(super) reply: oneshot::Sender<Result<Answer, PolicyError>>,
}

/// A sampled turn.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) done: GenerateDone,
    /// This request's share of the engine's time.
    pub(super) busy: Duration,
}

/// A message to the thread.
enum Command {
    Load(Box<LoadedVersion>, Loading),
    /// The weights of a read, by its number.
    Ready(u64, Result<Box<dyn ReadyWeights>, PolicyError>, Loading),
    Request(RunId, Box<Request>),
    Forget(RunId),
    /// Release the device. No request is in flight.
    Leave(oneshot::Sender<Result<(), PolicyError>>),
    /// The device is free again.
    ComeBack,
}

/// Who waits for a version to be served.
struct Loading {
    serving: watch::Sender<Serving>,
    reply: oneshot::Sender<Result<(), PolicyError>>,
}

/// Reads and verifies a version's weights.
pub(super) type Read =
    Arc<dyn Fn(&LoadedVersion) -> Result<Box<dyn ReadyWeights>, PolicyError> + Send + Sync>;

/// A handle to the thread, which ends when the last handle is dropped. The slots of the stage's
/// loops bound the channel's length.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    commands: mpsc::UnboundedSender<Command>,
}

impl Driver {
    /// Starts the thread. Weights are read by `read`.
    pub(super) fn start(read: Read) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let own = commands.downgrade();
        std::thread::Builder::new()
            .name("engine".to_owned())
            // Engines stay on their thread.
            .spawn(move || drive(inbox, Engines::new(read, own)))
            .expect("the system has room for a thread");
        Self { commands }
    }

    /// Makes an engine of these weights, or has the run's engine swap to them. They are read and
    /// verified on a thread of their own, while all engines sample. `serving` gets the version at the
    /// instant of the swap, and a failure when the engine breaks.
    pub(super) async fn load(
        &self,
        weights: LoadedVersion,
        serving: watch::Sender<Serving>,
    ) -> Result<(), PolicyError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Load(Box::new(weights), Loading { serving, reply }));
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Submits a request. The reply is dropped if the thread is gone.
    pub(super) fn request(&self, run: RunId, request: Request) {
        self.send(Command::Request(run, Box::new(request)));
    }

    /// Drops a run's engine.
    pub(super) fn forget(&self, run: RunId) {
        self.send(Command::Forget(run));
    }

    fn send(&self, command: Command) {
        // A thread that is gone drops the command, and with it the reply's sender.
        let _ = self.commands.send(command);
    }
}

#[async_trait]
impl Tenant for Driver {
    async fn leave(&self) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Leave(reply));
        answer.await.unwrap_or_else(|_| Err(gone())).map_err(|error| error.to_string())
    }

    fn come_back(&self) {
        self.send(Command::ComeBack);
    }
}

/// Refuses a turn that could not be trained on, before it leaves the worker. It is the engine's
/// fault, not the task's.
pub(super) fn check(done: &GenerateDone, from: PolicyVersion, to: PolicyVersion) -> Result<(), PolicyError> {
    let checked = done.check().and_then(|()| done.check_versions(from, to));
    checked.map_err(|error| PolicyError::Temporary(format!("the engine gave a malformed turn: {error}")))
}

fn gone() -> PolicyError {
    PolicyError::Temporary("the engine's thread is gone".to_owned())
}

/// Consumes commands, produces turns. Waits for a command while no request is in flight. Between
/// two steps it takes all commands that arrived, so that requests join the batch at once. A broken
/// engine is dropped with its requests. Ends when all handles are dropped.
fn drive(mut inbox: mpsc::UnboundedReceiver<Command>, mut engines: Engines) {
    loop {
        if engines.are_idle() {
            match inbox.blocking_recv() {
                Some(command) => engines.apply(command),
                None => return,
            }
        }
        while let Ok(command) = inbox.try_recv() {
            engines.apply(command);
        }
        engines.step();
    }
}
