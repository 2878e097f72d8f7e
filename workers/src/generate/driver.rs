//! The thread that owns the engines, one for each run.

use std::collections::HashMap;
use std::time::Duration;

use millrace_schemas::generate::{GenerateDone, GenerateTask};
use millrace_schemas::{PolicyVersion, RolloutId, RunId};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::follow::Serving;
use crate::model::versions::LoadedVersion;
use crate::policy::PolicyError;
use host::Host;

mod host;

/// A turn to sample.
pub(super) struct Request {
    pub(super) rollout: RolloutId,
    pub(super) task: GenerateTask,
    /// Fires when nobody wants the turn any more.
    pub(super) cancel: CancellationToken,
    pub(super) reply: oneshot::Sender<Result<Answer, PolicyError>>,
}

/// A sampled turn.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) done: GenerateDone,
    /// This request's share of the engine's time.
    pub(super) busy: Duration,
}

/// What the thread is told.
enum Command {
    Load(Box<LoadedVersion>, watch::Sender<Serving>, oneshot::Sender<Result<(), PolicyError>>),
    Request(RunId, Box<Request>),
    Forget(RunId),
}

/// A handle to the thread. The thread ends when the last is dropped. What waits for it is bounded by the
/// slots of the stage's loops.
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

    /// Makes an engine of these weights, or takes the run's engine over to them. `serving` is told of the
    /// version in the same instant, and when the engine breaks.
    pub(super) async fn load(
        &self,
        weights: LoadedVersion,
        serving: watch::Sender<Serving>,
    ) -> Result<(), PolicyError> {
        let (reply, answer) = oneshot::channel();
        self.send(Command::Load(Box::new(weights), serving, reply));
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Hands a request in. The reply is dropped if there is nobody to take it.
    pub(super) fn request(&self, run: RunId, request: Request) {
        self.send(Command::Request(run, Box::new(request)));
    }

    /// Lets a run's engine go.
    pub(super) fn forget(&self, run: RunId) {
        self.send(Command::Forget(run));
    }

    fn send(&self, command: Command) {
        // A thread that is gone drops the command, and whoever waits for its answer hears of that.
        let _ = self.commands.send(command);
    }
}

/// A turn that could not be trained on never leaves the worker. It is the engine's fault, not the task's.
pub(super) fn check(done: &GenerateDone, from: PolicyVersion, to: PolicyVersion) -> Result<(), PolicyError> {
    let checked = done.check().and_then(|()| done.check_versions(from, to));
    checked.map_err(|error| PolicyError::Temporary(format!("the engine gave a malformed turn: {error}")))
}

fn gone() -> PolicyError {
    PolicyError::Temporary("the engine's thread is gone".to_owned())
}

/// Consumes commands, produces answers. Waits for a command while nothing is in hand; between two steps it
/// takes whatever came in, so that requests join the batch as they come. A broken engine is let go with its
/// requests. Ends when nobody can send.
fn drive(mut inbox: mpsc::UnboundedReceiver<Command>) {
    let mut hosts = HashMap::<RunId, Host>::new();
    loop {
        if hosts.values().all(Host::is_idle) {
            match inbox.blocking_recv() {
                Some(command) => obey(&mut hosts, command),
                None => return,
            }
        }
        while let Ok(command) = inbox.try_recv() {
            obey(&mut hosts, command);
        }
        hosts.retain(|run, host| host.is_idle() || host.step(run));
    }
}

fn obey(hosts: &mut HashMap<RunId, Host>, command: Command) {
    match command {
        Command::Load(weights, serving, reply) => {
            let run = weights.manifest.run.clone();
            let loaded = match hosts.remove(&run) {
                Some(host) => host.load(&weights),
                None => Host::start(&weights, serving),
            };
            let answer = loaded.map(|host| drop(hosts.insert(run, host)));
            // Whoever asked may have left.
            let _ = reply.send(answer);
        }
        Command::Request(run, request) => match hosts.get_mut(&run) {
            Some(host) => host.admit(*request),
            None => {
                let _ = request.reply.send(Err(PolicyError::Temporary(format!("no engine for run={run}"))));
            }
        },
        Command::Forget(run) => drop(hosts.remove(&run)),
    }
}
