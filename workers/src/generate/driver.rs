//! The thread that owns the engines, one for each run.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use millrace_policy::{LoadedVersion, PolicyError};
use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_schemas::{PolicyVersion, RolloutId, RunId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::follow::Serving;
use crate::runtime::Tenant;
use host::Host;

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
    Load(Box<LoadedVersion>, watch::Sender<Serving>, oneshot::Sender<Result<(), PolicyError>>),
    Request(RunId, Box<Request>),
    Forget(RunId),
    /// Release the device. No request is in flight.
    Leave(oneshot::Sender<Result<(), PolicyError>>),
    /// The device is free again.
    ComeBack,
}

/// A handle to the thread, which ends when the last handle is dropped. The slots of the stage's
/// loops bound the channel's length.
#[derive(Debug, Clone)]
pub(super) struct Driver {
    commands: mpsc::UnboundedSender<Command>,
}

impl Driver {
    /// Starts the thread.
    pub(super) fn start() -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        std::thread::Builder::new()
            .name("engine".to_owned())
            .spawn(move || drive(inbox))
            .expect("the system has room for a thread");
        Self { commands }
    }

    /// Makes an engine of these weights, or loads them into the run's engine. `serving` gets the
    /// version at the same instant, and a failure when the engine breaks.
    pub(super) async fn load(
        &self,
        weights: LoadedVersion,
        serving: watch::Sender<Serving>,
    ) -> Result<(), PolicyError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Load(Box::new(weights), serving, reply));
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
fn drive(mut inbox: mpsc::UnboundedReceiver<Command>) {
    let mut engines = Engines::default();
    loop {
        if engines.hosts.values().all(Host::is_idle) {
            match inbox.blocking_recv() {
                Some(command) => engines.apply(command),
                None => return,
            }
        }
        while let Ok(command) = inbox.try_recv() {
            engines.apply(command);
        }
        engines.hosts.retain(|run, host| host.is_idle() || host.step(run));
    }
}

/// The engines of the thread.
#[derive(Default)]
struct Engines {
    hosts: HashMap<RunId, Host>,
    /// Versions to load when the device is free again; `None` while it is.
    postponed: Option<Vec<Command>>,
}

impl Engines {
    fn apply(&mut self, command: Command) {
        if let (Command::Load(..), Some(postponed)) = (&command, &mut self.postponed) {
            postponed.push(command);
            return;
        }
        match command {
            Command::Load(weights, serving, reply) => {
                let run = weights.manifest.run.clone();
                let loaded = match self.hosts.remove(&run) {
                    Some(host) => host.load(&weights),
                    None => Host::start(&weights, serving),
                };
                let answer = loaded.map(|host| drop(self.hosts.insert(run, host)));
                // The receiver may be gone.
                let _ = reply.send(answer);
            }
            Command::Request(run, request) => match self.hosts.get_mut(&run) {
                Some(host) if self.postponed.is_none() => host.admit(*request),
                Some(_) => refuse(*request, "a step has the device".to_owned()),
                None => refuse(*request, format!("no engine for run={run}")),
            },
            Command::Forget(run) => drop(self.hosts.remove(&run)),
            Command::Leave(reply) => {
                self.postponed.get_or_insert_default();
                let left = self.hosts.values_mut().try_for_each(Host::leave_device);
                let _ = reply.send(left);
            }
            Command::ComeBack => {
                self.postponed.take().into_iter().flatten().for_each(|command| self.apply(command));
            }
        }
    }
}

fn refuse(request: Request, why: String) {
    let _ = request.reply.send(Err(PolicyError::Temporary(why)));
}
